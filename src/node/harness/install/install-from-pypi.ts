import { chmod, copyFile, cp, mkdir, readdir, realpath, writeFile } from 'node:fs/promises'
import { basename, dirname, join, relative } from 'node:path'
import { fileExists } from '../../../lib/fs/file-exists.ts'
import { readElfNeeds } from '../../../lib/process/elf.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { isOlder, type HarnessFolders } from '../find-harness.ts'
import { compilePython } from './compile-python.ts'
import { fetchPip } from './fetch-pip.ts'
import { PYTHON_LIBRARIES } from './harness-bundle.ts'
import type { HarnessPackage } from '../presets/harness.ts'
import { fetchStandalonePython } from './standalone-python.ts'

interface PipDeps {
  env: Readonly<Record<string, string | undefined>>
  signal: AbortSignal
  folders: Pick<HarnessFolders, 'platform' | 'tmpdir'>
}

/**
 * Installs a package into an empty folder, with a copy of Python, its standard library and the shared libraries that they
 * load. Copies a Python from PATH, or a downloaded Python if those in PATH are too old. Returns the error message, if any.
 */
export async function installFromPypi(
  { name, version, pins = [], minimumPython, imports }: HarnessPackage,
  folder: string,
  deps: PipDeps,
): Promise<string | undefined> {
  const python = await findPython(minimumPython, deps)
  if (typeof python === 'string') return python
  await using _ = python
  const { tmpdir } = deps.folders
  const home = await copyPython(python, folder)
  const target = join(home, 'site-packages')
  const flags = ['--target', target, '--no-compile', '--no-input', '--disable-pip-version-check']
  await using fetched = python.pip === undefined ? await fetchPip(python.executable, { ...deps, tmpdir }) : undefined
  const folderOfPip = python.pip ?? fetched?.folder
  const pip = await runProgram(
    [python.executable, '-m', 'pip', 'install', ...flags, `${name}==${version}`, ...pins],
    folderOfPip === undefined ? deps : { ...deps, env: await toPipEnv(folderOfPip, deps.env) },
  )
  if (pip.exitCode !== 0) return `pip ended with ${pip.exitCode}:\n${(pip.stderr || pip.stdout).trim().slice(-2000)}`
  await copyLibraries(folder, deps)
  await compilePython({
    folder,
    program: PROGRAM,
    library: relative(folder, home),
    imports,
    tmpdir,
    signal: deps.signal,
  })
  return undefined
}

const PROGRAM = 'python/bin/python3'

/** Files of Linux distributions with the certificate authorities that the machine trusts. */
const SYSTEM_CERTIFICATES = ['/etc/ssl/certs/ca-certificates.crt', '/etc/pki/tls/certs/ca-bundle.crt']

/** A downloaded pip trusts only its own authorities by default; those of a company are missing. */
async function toPipEnv(pip: string, env: PipDeps['env']): Promise<PipDeps['env']> {
  const isSet = ['PIP_CERT', 'REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE'].some((name) => env[name] !== undefined)
  const found = isSet
    ? []
    : await Promise.all(SYSTEM_CERTIFICATES.map(async (path) => ((await fileExists(path)) ? [path] : [])))
  const [bundle] = found.flat()
  return { ...env, PYTHONPATH: pip, ...(bundle === undefined ? {} : { PIP_CERT: bundle }) }
}

interface Python extends AsyncDisposable {
  executable: string
  /** `3.12` */
  minor: string
  standardLibrary: string
  /** A folder with pip. Absent: the Python contains pip. */
  pip?: string
}

/** Tries other commands only if `python3` is too old, and downloads a Python if all of them are. */
async function findPython(minimum: string | undefined, deps: PipDeps): Promise<Python | string> {
  const preferred = await inspectPython('python3', deps)
  const isEnough = (python: Python | string): python is Python =>
    typeof python !== 'string' && (minimum === undefined || !isOlder(python.minor, minimum))
  if (minimum === undefined || isEnough(preferred)) return preferred
  for (const name of OTHER_PYTHONS) {
    const other = await inspectPython(name, deps)
    if (isEnough(other) && (await hasPip(other, deps))) return other
  }
  try {
    const { executable, pip, ...rest } = await fetchStandalonePython({
      ...deps.folders,
      env: deps.env,
      signal: deps.signal,
    })
    const python = await inspectPython(executable, deps)
    return typeof python === 'string' ? python : { ...python, pip, ...rest }
  } catch (error) {
    deps.signal.throwIfAborted()
    return `it needs Python ${minimum} or newer, which is not in PATH, and ${(error as Error).message}`
  }
}

const OTHER_PYTHONS = ['python3.14', 'python3.13', 'python3.12']

async function inspectPython(name: string, deps: PipDeps): Promise<Python | string> {
  const script = `import json, sys, sysconfig
print(json.dumps([sys._base_executable, "%d.%d" % sys.version_info[:2], sysconfig.get_path("stdlib")]))`
  const { exitCode, stdout, stderr } = await runProgram([name, '-I', '-c', script], deps)
  if (exitCode !== 0) return `it needs a python3 in PATH: ${stderr.trim()}`
  const [executable, minor, standardLibrary] = JSON.parse(stdout) as [string, string, string]
  return { executable: await realpath(executable), minor, standardLibrary, async [Symbol.asyncDispose]() {} }
}

async function hasPip({ executable }: Python, deps: PipDeps): Promise<boolean> {
  return (await runProgram([executable, '-m', 'pip', '--version'], deps)).exitCode === 0
}

/** Copies Python and returns its library folder, which Python finds relative to its program. */
async function copyPython({ executable, minor, standardLibrary }: Python, folder: string): Promise<string> {
  const program = join(folder, PROGRAM)
  await mkdir(dirname(program), { recursive: true })
  await copyFile(executable, program)
  await chmod(program, 0o755)
  const home = join(folder, 'python', 'lib', `python${minor}`)
  await cp(standardLibrary, home, {
    recursive: true,
    dereference: true,
    filter: (source) => !UNUSED.test(source.slice(standardLibrary.length)),
  })
  await mkdir(join(home, 'site-packages'), { recursive: true })
  await writeFile(join(home, 'sitecustomize.py'), SITE)
  return home
}

/** Parts of the standard library that are not copied: tests, installed packages, GUI and build tools. */
const UNUSED =
  /^\/(test|lib-dynload\/_tkinter\.[^/]*|lib-dynload\/nis\.[^/]*|site-packages|dist-packages|idlelib|tkinter|turtledemo|ensurepip|lib2to3\/tests|config-[^/]*)(\/|$)|\/(__pycache__|tests)(\/|$)/

/**
 * Python runs this file when it starts. The programs that it starts use the libraries of the sandbox, and Debian's Python, which
 * looks for packages in `dist-packages` only, finds `site-packages`.
 */
const SITE = `import os, site, sys
os.environ.pop("LD_LIBRARY_PATH", None)
packages = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages")
if packages not in sys.path:
    site.addsitedir(packages)
`

/** Copies shared libraries of the machine, except those of glibc, which every sandbox with glibc has. */
async function copyLibraries(folder: string, deps: PipDeps): Promise<void> {
  const target = join(folder, PYTHON_LIBRARIES)
  const modules = (await readdir(folder, { recursive: true })).filter((name) => name.endsWith('.so'))
  const known = new Set<string>()
  for (const path of [PROGRAM, ...modules].map((name) => join(folder, name))) {
    const needs = await readElfNeeds(path).catch(() => undefined)
    const missing = needs?.libraries.filter((library) => !SYSTEM.test(library) && !known.has(library)) ?? []
    if (missing.length === 0) continue
    for (const [library, source] of await resolveLibraries(path, deps)) {
      // Wheels contain their own libraries and find them by relative paths.
      if (known.has(library) || SYSTEM.test(library) || source.startsWith(`${folder}/`)) continue
      known.add(library)
      await copyFile(source, join(target, library))
    }
  }
}

const SYSTEM = /^(ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|util|resolv|nsl|anl|BrokenLocale)\.so)/

/** Resolves all libraries of a program with the machine's dynamic loader, including indirect ones. */
async function resolveLibraries(path: string, deps: PipDeps): Promise<[string, string][]> {
  const { stdout } = await runProgram(['ldd', path], deps)
  const found = [...stdout.matchAll(/^\s*(\S+) => (\/\S+) \(/gm)]
  return Promise.all(found.map(async ([, name = '', source = '']) => [basename(name), await realpath(source)]))
}
