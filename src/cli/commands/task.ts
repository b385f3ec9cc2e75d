import { ApiTaskState } from '../../api/routes/task-routes.ts'
import { shellWord } from '../../lib/process/shell-word.ts'
import { toVisibleLine } from '../../lib/visible-text.ts'
import { endWithOutput } from '../views/closed-output.ts'
import { defineCommand, EXIT, parseNumber, usageError, type ExitCode } from '../command.ts'
import { PLACE_FLAGS } from '../input/config-flags.ts'
import { explainFailure, findServer, type FoundServer, type ServerFlags } from '../input/find-server.ts'
import { findTask, listSessions, listTasks } from '../task/find-task.ts'
import { removeTasks } from '../task/remove-tasks.ts'
import { saveResults } from '../task/save-results.ts'
import { readTasks, submitTasks, warnOfPaths, type Submitted } from '../task/submit-tasks.ts'
import { waitForTasks } from '../task/wait-for-tasks.ts'
import { renderSession, renderTask, renderTasks, type TaskSummary } from '../views/task-view.ts'
import { print, printError, printJson } from '../views/print.ts'

const PATIENCE_SECONDS = '600'

export const task = defineCommand({
  name: 'task',
  description: 'Submit tasks to a server, follow them, and get their results.',
  words: {
    name: 'ACTION FILE…|ID…',
    description:
      'submit FILE…, ls, show ID, wait ID…, results ID…, cancel ID…, retry ID… or rm ID…; files are YAML, JSON or JSONL',
  },
  flags: {
    server: {
      type: 'string',
      hint: 'URL',
      description: 'Where the server is (default: POLAR_SERVER_URL, else polar up)',
    },
    'token-file': { type: 'string', hint: 'FILE', description: 'File with a token for trainers; or set POLAR_TOKEN' },
    ...PLACE_FLAGS,
    samples: { type: 'string', hint: 'N', description: 'submit: sessions of each task, instead of what it says' },
    priority: { type: 'string', hint: 'N', description: 'submit: 0-100, higher goes first, instead of what it says' },
    id: { type: 'string', hint: 'NAME', description: 'submit: name of the task, instead of what it says' },
    wait: { type: 'boolean', description: 'submit: wait until all of it is over' },
    again: { type: 'boolean', description: 'submit: a new run of tasks that are over' },
    queue: { type: 'boolean', description: 'submit: also tasks that no registered node can run; they wait for one' },
    patience: {
      type: 'string',
      hint: 'SECONDS',
      default: PATIENCE_SECONDS,
      description: 'wait: how long the server may be away',
    },
    status: { type: 'string', hint: 'WORD', choices: ApiTaskState.options, description: 'ls: only those' },
    search: { type: 'string', hint: 'TEXT', description: 'ls: only those with this in their name' },
    limit: { type: 'string', hint: 'N', default: '50', description: 'ls: at most so many' },
    session: { type: 'string', hint: 'ID', description: 'show: this session, and all attempts at it' },
    to: { type: 'string', hint: 'DIR', description: 'results: a file for each task there, instead of standard output' },
    follow: { type: 'boolean', description: 'results: go on until the task is over' },
    cancelled: { type: 'boolean', description: 'retry: also sessions that were cancelled' },
    json: { type: 'boolean', description: 'Print JSON' },
  },
  examples: [
    'polar task submit examples/tasks/ask.yaml --wait',
    'polar task ls --status running',
    'polar task show ask',
    'polar task results ask --to results',
    'polar task rm ask',
  ],
  async run({ flags, words: [action, ...words] }): Promise<ExitCode> {
    const find = (): Promise<FoundServer> => findServer(flags)
    const ids = (): [string, ...string[]] => {
      const [first, ...others] = words
      if (first === undefined) throw usageError('task', `say which task: polar task ${action} ID`)
      return [first, ...others]
    }
    const patience = parseNumber('task', 'patience', flags.patience, { min: 0, max: 31_536_000 })
    try {
      switch (action) {
        case 'submit':
          return await submit(words, flags, find, patience)
        case 'ls':
          return await list(words, flags, find)
        case 'show':
          return await show(words, flags, find)
        case 'wait':
          return await wait(ids(), { find, patience, asJson: flags.json })
        case 'results':
          return await results(ids(), flags, find)
        case 'cancel':
          return await cancel(ids(), flags, find)
        case 'retry':
          return await retry(ids(), flags, find)
        case 'rm':
          return await removeTasks(ids(), flags, find)
        case undefined:
          throw usageError('task', 'say submit, ls, show, wait, results, cancel, retry or rm')
        default:
          throw usageError('task', `there is no "${action}"`)
      }
    } catch (error) {
      throw explainFailure(error)
    }
  },
})

type Find = () => Promise<FoundServer>

interface TaskFlags extends ServerFlags {
  samples: string | undefined
  priority: string | undefined
  id: string | undefined
  wait: boolean
  again: boolean
  queue: boolean
  status: string | undefined
  search: string | undefined
  limit: string
  session: string | undefined
  to: string | undefined
  follow: boolean
  cancelled: boolean
  json: boolean
}

async function submit(files: readonly string[], flags: TaskFlags, find: Find, patience: number): Promise<ExitCode> {
  if (files.length === 0) throw usageError('task', 'say which tasks to submit, as in: polar task submit task.yaml')
  const whole = (flag: 'samples' | 'priority', min: number, max: number): number | undefined =>
    flags[flag] === undefined ? undefined : parseNumber('task', flag, flags[flag], { min, max })
  const changes = { samples: whole('samples', 1, 10_000), priority: whole('priority', 0, 100), id: flags.id }
  const server = await find().catch(async (error: unknown) => {
    // Mistakes in the tasks come first.
    await readTasks(files, changes, { isLocal: true })
    throw error
  })
  const tasks = await readTasks(files, changes, server)
  const warning = warnOfPaths(server, tasks)
  if (warning !== undefined) printError(`${warning}\n`)
  const outcomes = await submitTasks(server, tasks, { isAgain: flags.again, isQueued: flags.queue })
  for (const outcome of outcomes) {
    if (flags.json && !flags.wait) printJson(outcome)
    else if (!flags.json) print(`${toVisibleLine(outcome.task_id)}: ${SAYINGS[outcome.outcome]}\n`)
    for (const text of outcome.warnings ?? []) printError(`${toVisibleLine(`${outcome.task_id}: ${text}`)}\n`)
  }
  const taken = outcomes.filter(({ outcome }) => outcome === 'created' || outcome === 'same')
  const isRefused = taken.length < outcomes.length
  if (flags.wait && taken.length > 0) {
    const code = await wait(
      taken.map(({ task_id: id }) => id),
      { find, patience, asJson: flags.json },
    )
    return code === EXIT.done && isRefused ? EXIT.failed : code
  }
  if (!flags.json && !flags.wait && taken[0] !== undefined)
    printError(
      `Follow it with: polar task wait ${taken
        .map(({ task_id: id }) => quote(id))
        .slice(0, 5)
        .join(' ')}\n`,
    )
  return isRefused ? EXIT.failed : EXIT.done
}

const SAYINGS: Readonly<Record<Submitted['outcome'], string>> = {
  created: 'submitted',
  same: 'is there already, with this very body; for another run of it use --again, or --id',
  conflict: 'refused: another task has this name; give this one another with --id, or use --again once that is over',
  stale: 'refused: it was made for a policy that is too old by now',
  cancelled: 'refused: it was cancelled before it came',
  deleted: 'refused: it was here and has been deleted; to run it again use --again, or --id',
  'no-node': 'refused: no registered node can run it; start such a node, or submit with --queue',
}

async function list(words: readonly string[], flags: TaskFlags, find: Find): Promise<ExitCode> {
  if (words.length > 0) throw usageError('task', 'ls takes no names; try --search TEXT')
  const most = parseNumber('task', 'limit', flags.limit, { min: 1, max: 1_000_000 })
  const { client } = await find()
  const query = {
    ...(flags.status === undefined ? {} : { status: ApiTaskState.parse(flags.status) }),
    ...(flags.search === undefined ? {} : { search: flags.search }),
  }
  const tasks: TaskSummary[] = []
  for await (const one of listTasks(client, query, most)) {
    if (flags.json) printJson(one)
    else tasks.push(one)
  }
  if (!flags.json) print(renderTasks(tasks, Date.now()))
  return EXIT.done
}

async function show(words: readonly string[], flags: TaskFlags, find: Find): Promise<ExitCode> {
  const { client } = await find()
  if (flags.session !== undefined) {
    const session = await client.getSession({ params: { session_id: flags.session } })
    if (flags.json) printJson(session)
    else print(renderSession(session))
    return EXIT.done
  }
  const [id, ...more] = words
  if (id === undefined || more.length > 0) throw usageError('task', 'show takes one task, or --session ID')
  const found = await findTask(client, id)
  const { sessions, unrunnable } = await listSessions(client, id)
  if (flags.json) printJson({ ...found, sessions, unrunnable })
  else print(renderTask(found, sessions, Date.now(), unrunnable))
  return EXIT.done
}

async function wait(
  ids: readonly string[],
  { find, patience, asJson }: { find: Find; patience: number; asJson: boolean },
): Promise<ExitCode> {
  using _ = endWithOutput()
  const interrupted = new AbortController()
  const stop = (): void => interrupted.abort(new Error('interrupted'))
  process.once('SIGINT', stop).once('SIGTERM', stop)
  try {
    const tasks = await waitForTasks({
      ids,
      find,
      patienceMs: patience * 1000,
      signal: interrupted.signal,
      ...(asJson ? { onEnd: (ended) => printJson(ended) } : {}),
    })
    if (!asJson) print(renderTasks(tasks, Date.now()))
    return tasks.every(({ status }) => status === 'completed') ? EXIT.done : EXIT.failed
  } catch (error) {
    if (!interrupted.signal.aborted) throw error
    printError(
      `Not over yet; the server goes on. To wait again: polar task wait ${ids.map(quote).slice(0, 5).join(' ')}\n`,
    )
    return EXIT.interrupted
  } finally {
    process.off('SIGINT', stop).off('SIGTERM', stop)
  }
}

async function results(ids: readonly string[], flags: TaskFlags, find: Find): Promise<ExitCode> {
  const { client } = await find()
  const interrupted = new AbortController()
  const stop = (): void => interrupted.abort(new Error('interrupted'))
  process.once('SIGINT', stop).once('SIGTERM', stop)
  const { signal } = interrupted
  try {
    for (const id of ids) {
      if (flags.to !== undefined) {
        const saved = await saveResults(client, id, { dir: flags.to, follow: flags.follow, signal })
        if (flags.json) printJson({ task_id: id, ...saved })
        else print(`${toVisibleLine(id)}: ${saved.results} results in ${saved.file}\n`)
        continue
      }
      using _ = endWithOutput()
      const query = { follow: flags.follow }
      for await (const result of client.streamTaskResults({ params: { task_id: id }, query, signal })) printJson(result)
    }
    return EXIT.done
  } catch (error) {
    if (signal.aborted) return EXIT.interrupted
    throw error
  } finally {
    process.off('SIGINT', stop).off('SIGTERM', stop)
  }
}

async function cancel(ids: readonly string[], flags: TaskFlags, find: Find): Promise<ExitCode> {
  const { client } = await find()
  for (const id of ids) {
    const { status } = await client.cancelTask({ params: { task_id: id } })
    if (flags.json) printJson({ task_id: id, status })
    else print(`${toVisibleLine(id)}: ${status}\n`)
  }
  return EXIT.done
}

async function retry(ids: readonly string[], flags: TaskFlags, find: Find): Promise<ExitCode> {
  const { client } = await find()
  const statuses: ('ERROR' | 'TIMEOUT' | 'CANCELLED')[] = flags.cancelled ? ['ERROR', 'CANCELLED'] : ['ERROR']
  for (const id of ids) {
    const answer = await client.retryTask({ params: { task_id: id }, body: { statuses } })
    if (flags.json) printJson(answer)
    else print(`${toVisibleLine(id)}: ${answer.retried_sessions} sessions are made again\n`)
  }
  return EXIT.done
}

/** As a shell takes it back. */
function quote(id: string): string {
  return /^[\w.:@/+-]+$/.test(id) ? id : toVisibleLine(shellWord(id))
}
