import { execFileSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { shellWord } from '../../src/lib/process/shell-word.ts'

const tasksDir = fileURLToPath(new URL('../tasks', import.meta.url))

/** A small repository with a defect, its solution, and tests. */
export interface GradedTask {
  name: string
  dir: string
  version: string
  language: 'python' | 'javascript' | 'go'
  runner: 'pytest' | 'unittest' | 'node' | 'go'
  package: string
  /** The hidden test file, as a path in the repository. */
  hidden: string
  test_cmd: string
  log_parser: string
  FAIL_TO_PASS: string[]
  PASS_TO_PASS: string[]
  instruction: string
  goldPatch: string
}

export interface Cheat {
  name: string
  /** Bash script that runs in the repository. */
  script: string
  /** Written for this task; the other cheats depend on the language and the test runner only. */
  isOwn: boolean
}

export function loadGradedTasks(): GradedTask[] {
  const names = readdirSync(tasksDir).filter((name) => name !== 'cheats')
  return names.map((name) => {
    const dir = join(tasksDir, name)
    const read = (file: string): string => readFileSync(join(dir, file), 'utf8')
    const facts = JSON.parse(read('task.json')) as Omit<GradedTask, 'name' | 'dir' | 'instruction' | 'goldPatch'>
    return { ...facts, name, dir, instruction: read('instruction.md'), goldPatch: read('gold.patch') }
  })
}

/** Loads the cheats for all tasks, for tasks of the language, and for this task. */
export function loadCheats(task: GradedTask): Cheat[] {
  const folders = ['any', task.language, task.name].map((name) => join(tasksDir, 'cheats', name))
  // The cheat knows all facts: the hidden file, its name, and the tests that must pass.
  const facts = `PACKAGE=${task.package}
HIDDEN=${task.hidden}
RUNNER=${task.runner}
TESTS=${shellWord([...task.FAIL_TO_PASS, ...task.PASS_TO_PASS].join('\n'))}
export PACKAGE HIDDEN RUNNER TESTS
`
  return folders.flatMap((folder) =>
    readdirSync(folder).map((file) => ({
      name: basename(file, '.sh'),
      script: facts + readFileSync(join(folder, file), 'utf8'),
      isOwn: basename(folder) === task.name,
    })),
  )
}

/** Returns a shell script that applies the solution in the repository. */
export function goldScript(task: GradedTask): string {
  const dir = mkdtempSync(join(tmpdir(), 'polar-gold-'))
  try {
    cpSync(join(task.dir, 'repo'), dir, { recursive: true })
    const git = gitIn(dir)
    git('init', '--quiet')
    git('apply', join(task.dir, 'gold.patch'))
    const paths = [...task.goldPatch.matchAll(/^\+\+\+ b\/(.+)$/gm)].map(([, path]) => path!)
    return paths
      .map((path) => `cat > ${shellWord(path)} <<'END_OF_FILE'\n${readFileSync(join(dir, path), 'utf8')}END_OF_FILE\n`)
      .join('')
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

/** Creates the repository with one commit, whose id does not depend on machine or time. */
export function makeRepository(task: GradedTask, target: string): { baseCommit: string } {
  mkdirSync(target, { recursive: true })
  const git = gitIn(target)
  git('init', '--quiet', '--initial-branch=main', '--object-format=sha1')
  cpSync(join(task.dir, 'repo'), target, { recursive: true })
  git('add', '--all', '--force')
  git('commit', '--quiet', '--message', `${task.name} ${task.version}`)
  return { baseCommit: git('rev-parse', 'HEAD').trim() }
}

/** The task as a row of SWE-bench. `repository` was created by `makeRepository` and is unchanged afterwards. */
export function toSwebenchRow(task: GradedTask, repository: string, baseCommit: string) {
  const git = gitIn(repository)
  cpSync(join(task.dir, 'hidden'), repository, { recursive: true })
  git('add', '--all', '--force')
  const testPatch = git('diff', '--cached', '--no-color', 'HEAD')
  git('reset', '--quiet', '--hard', 'HEAD')
  return {
    instance_id: `polar__${task.name}-1`,
    repo: `polar/${task.name}`,
    base_commit: baseCommit,
    version: task.version,
    problem_statement: task.instruction,
    patch: task.goldPatch,
    test_patch: testPatch,
    FAIL_TO_PASS: task.FAIL_TO_PASS,
    PASS_TO_PASS: task.PASS_TO_PASS,
    test_cmd: task.test_cmd,
    log_parser: task.log_parser,
  }
}

/** The task as a folder of Harbor's. */
export function writeHarborTask(task: GradedTask, target: string): void {
  const write = (path: string, text: string, mode = 0o644): void => {
    mkdirSync(dirname(join(target, path)), { recursive: true })
    writeFileSync(join(target, path), text, { mode })
  }
  const { image, step, hidden } = environments[task.runner]
  write('instruction.md', task.instruction)
  write('task.toml', taskToml(task))
  write('environment/Dockerfile', `FROM ${image}\nWORKDIR /app\nCOPY repo/ /app/\n${step}`)
  cpSync(join(task.dir, 'repo'), join(target, 'environment/repo'), { recursive: true })
  write('solution/solve.sh', `#!/bin/bash\n${goldScript(task)}`, 0o755)
  write('tests/test.sh', testScript(task), 0o755)
  write(`tests/hidden/${hidden}`, readFileSync(join(task.dir, 'hidden', task.hidden), 'utf8'))
  if (task.runner === 'go') write('tests/hidden/go.mod', 'module example.org/hidden\n\ngo 1.19\n')
}

/** For each runner: its image, an additional build step, the name of the hidden tests, and the command that runs them. */
const environments = {
  pytest: {
    image: 'docker.io/library/python:3.12-slim-bookworm',
    step: "RUN python3 -c 'import pytest' || pip install --no-cache-dir pytest==8.4.2\n",
    hidden: 'test_cli.py',
    run: 'python3 -I -B -m pytest -q -c /dev/null --rootdir "$tests" --noconftest --import-mode=importlib -p no:cacheprovider "$tests/test_cli.py"',
  },
  unittest: {
    image: 'docker.io/library/python:3.12-slim-bookworm',
    step: '',
    hidden: 'test_cli.py',
    run: 'python3 -I -B "$tests/test_cli.py" -v',
  },
  node: {
    image: 'docker.io/library/node:24-bookworm-slim',
    step: '',
    hidden: 'cli.test.mjs',
    run: 'node "$tests/cli.test.mjs"',
  },
  go: {
    image: 'docker.io/library/golang:1.24-bookworm',
    step: '',
    hidden: 'cli_test.go',
    run: 'REPOSITORY=$PWD GOENV=off GOWORK=off GOFLAGS= GOTOOLCHAIN=local CGO_ENABLED=0 sh -c \'cd "$1" && exec go test -vet=off -count=1 -v ./...\' sh "$tests"',
  },
} as const

function taskToml(task: GradedTask): string {
  return `schema_version = "1.4"

[task]
name = "polar/${task.name}"
description = "One failing behaviour of a small ${task.language} program"

[metadata]
difficulty = "easy"
category = "software-engineering"
tags = ["${task.language}", "${task.runner}"]

# The tests always leave a reward unless the program they run puts an end to them.
[metadata.polar.evaluator]
missing_reward = "check"

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 120.0

[environment]
build_timeout_sec = 600.0
network_mode = "no-network"
`
}

function testScript({ runner }: GradedTask): string {
  return `#!/bin/bash
# The program is run from outside, so none of it runs in the process that judges it. It may still leave processes behind,
# which could write a reward of their own; they are ended before the verdict is written. All of this is one function, which
# bash has read to its end before the program runs for the first time.
tests=$(cd "$(dirname "$0")/hidden" && pwd)

# Those of this sandbox besides this shell and the first process, in \`others\`; those that have ended do not count.
find_others() {
  others=()
  local place pid state
  for place in /proc/[0-9]*; do
    pid=\${place#/proc/}
    [ "$pid" = 1 ] || [ "$pid" = "$$" ] || [ "$pid" = "$PPID" ] && continue
    state=Z
    { read -r state < "$place/stat"; } 2> /dev/null
    state=\${state##*) }
    [ "\${state%% *}" = Z ] || others+=("$pid")
  done
}

main() {
  find_others
  # Where others run from the start, as on a machine without sandboxes, they are none of our business.
  local is_alone=no
  [ \${#others[@]} -gt 0 ] || is_alone=yes
  ( export HIDE_TESTS="$tests"; ${environments[runner].run} )
  local status=$? reward=0 attempt
  if [ $is_alone = yes ]; then
    for attempt in {1..200}; do
      find_others
      [ \${#others[@]} -gt 0 ] || break
      kill -KILL "\${others[@]}" 2> /dev/null
    done
    [ \${#others[@]} -eq 0 ] || status=1
  fi
  [ $status -ne 0 ] || reward=1
  rm -rf /logs/verifier/*
  echo $reward > /logs/verifier/reward.txt
  exit 0
}

main
`
}

function gitIn(dir: string): (...args: string[]) => string {
  const env = {
    PATH: process.env['PATH'],
    HOME: '/nonexistent',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_AUTHOR_NAME: 'Polar',
    GIT_AUTHOR_EMAIL: 'polar@example.org',
    GIT_AUTHOR_DATE: '2024-01-01T00:00:00Z',
    GIT_COMMITTER_NAME: 'Polar',
    GIT_COMMITTER_EMAIL: 'polar@example.org',
    GIT_COMMITTER_DATE: '2024-01-01T00:00:00Z',
  }
  return (...args) => execFileSync('git', ['-c', 'core.fileMode=false', ...args], { cwd: dir, env, encoding: 'utf8' })
}
