/** An nginx process in front of an upstream. Its supervisor is a child process and ends with the parent. */
import { access, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { serveParent } from './child.ts'
import { freePort, startService, type Service, type ServiceReady } from './service.ts'

const dir = await mkdtemp(join(tmpdir(), 'polar-nginx-'))
let nginx: Service | undefined
serveParent(await start(process.argv[2] ?? ''), { stop })

async function start(upstreamUrl: string): Promise<ServiceReady> {
  const binary = await findNginx()
  if (binary === undefined) return { missing: 'nginx is not installed; apt-get install nginx-light adds the row' }
  const port = await freePort()
  const config = join(dir, 'nginx.conf')
  await writeFile(config, renderConfig(port, new URL(upstreamUrl).host))
  const args = ['-p', dir, '-c', config, '-e', join(dir, 'error.log')]
  nginx = await startService({ name: 'nginx', file: binary, args, port, timeoutMs: 5000 })
  return nginx.ready
}

async function stop(): Promise<void> {
  await nginx?.stop()
  await rm(dir, { recursive: true, force: true })
}

/** One process, like the other parties; answers are buffered in memory, because files would measure the disk. */
function renderConfig(port: number, upstream: string): string {
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
  const common = `proxy_pass http://replay/v1/; proxy_http_version 1.1; proxy_set_header Connection "";`
  return `
daemon off; master_process off; pid ${dir}/nginx.pid;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 1000000000; keepalive_timeout 60s;
  ${temporary.map((kind) => `${kind}_temp_path ${dir}/${kind};`).join(' ')}
  client_max_body_size 64m; client_body_buffer_size 256k;
  proxy_buffer_size 64k; proxy_buffers 64 64k; proxy_busy_buffers_size 512k; proxy_max_temp_file_size 0;
  upstream replay { server ${upstream}; keepalive 1024; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:${port} backlog=4096;
    location /v1/ { ${common} }
    location /unbuffered/v1/ { ${common} proxy_buffering off; }
  }
}
`
}

async function findNginx(): Promise<string | undefined> {
  // Debian installs nginx in a folder of root's PATH only.
  for (const folder of [...(process.env['PATH'] ?? '').split(delimiter), '/usr/sbin', '/usr/local/sbin']) {
    const file = join(folder, 'nginx')
    const found = await access(file).then(
      () => true,
      () => false,
    )
    if (found) return file
  }
  return undefined
}
