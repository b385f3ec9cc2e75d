import { join } from 'node:path'
import { runProgram } from '../../../lib/process/run-program.ts'
import { bundleStart } from './harness-bundle.ts'
import { createHarnessHome } from '../harness-home.ts'
import type { HarnessPackage } from '../presets/harness.ts'

interface CompileOptions {
  /** The bundle. */
  folder: string
  /** The Python of the bundle, relative to the folder. */
  program: string
  /** Library folder of that Python, with the packages. */
  library: string
  imports: HarnessPackage['imports']
  tmpdir: string
  signal: AbortSignal
}

/**
 * Writes bytecode into a bundle that is not sealed yet. Python checks it against the content of the source, not against its
 * time: a copy of the bundle has other times, and a sandbox cannot write to it. A session imports about a quarter of the files
 * of a harness, so that only these are compiled where the preset names the modules that a session imports.
 */
export async function compilePython(options: CompileOptions): Promise<void> {
  const { folder, program, library, imports, tmpdir, signal } = options
  const { command, env } = bundleStart({ program: { kind: 'python', path: program }, interpreter: null }, folder)
  if (imports !== undefined) {
    await using home = await createHarnessHome(tmpdir)
    const { exitCode } = await runProgram([...command, '-c', COMPILE_IMPORTS, `${folder}/`, ...imports.modules], {
      cwd: home.path,
      env: { PATH: '', HOME: home.path, TMPDIR: home.tmpdir, ...imports.env, ...env },
      signal,
    })
    if (exitCode === 0) return
  }
  const flags = ['-q', '-j', '0', '--invalidation-mode', 'unchecked-hash', '-s', folder]
  await runProgram([...command, '-m', 'compileall', ...flags, join(folder, library)], { env, signal })
}

/**
 * Arguments: the folder that is written to, and the modules. Python starts with writing of bytecode switched off: what it imports before this script would be
 * checked by time.
 */
const COMPILE_IMPORTS = `import importlib
import py_compile
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import source_hash

root, *names = sys.argv[1:]
known = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
write = SourceFileLoader.set_data


def write_unchecked(self, path, data, **options):
    if not self.path.startswith(root):
        return
    with open(self.path, "rb") as source:
        # PEP 552: magic number, flags, hash of the source, code.
        header = data[:4] + (1).to_bytes(4, "little") + source_hash(source.read())
    write(self, path, header + data[16:], **options)


SourceFileLoader.set_data = write_unchecked
sys.dont_write_bytecode = False
for name in names:
    importlib.import_module(name)
sys.dont_write_bytecode = True
for file in known:
    if file.startswith(root) and file.endswith(".py"):
        py_compile.compile(file, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
`
