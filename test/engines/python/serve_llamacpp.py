"""Starts llama.cpp's HTTP server: `serve_llamacpp.py <model.gguf> <port> <context tokens> <slots>`."""

import signal
import sys
import threading

import xllamacpp

model, port, context, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
params = xllamacpp.CommonParams()
params.model.path = model
params.port = port
params.n_ctx = context * slots
params.n_parallel = slots
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
params.use_jinja = True
params.ctx_shift = False
params.endpoint_metrics = True
params.endpoint_slots = True
server = xllamacpp.Server(params)
print(f"listening on {server.listening_address}", flush=True)
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
stop.wait()
