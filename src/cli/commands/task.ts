import { ApiTaskState } from '../../api/routes/task-routes.ts'
import { shellWord } from '../../lib/process/shell-word.ts'
import { toVisibleLine } from '../../lib/visible-text.ts'
import { listenForStop } from '../stop-signals.ts'
import { endWithOutput } from '../views/closed-output.ts'
import {
  actionError,
  defineCommand,
  EXIT,
  option,
  parseNumber,
  toggle,
  usageError,
  type ExitCode,
  type FlagValues,
} from '../command.ts'
import { TRAINER_FLAGS } from '../input/config-flags.ts'
import { explainFailure, findServer, type FoundServer } from '../input/find-server.ts'
import { findTask, listSessions, listTasks } from '../task/find-task.ts'
import { removeTasks } from '../task/remove-tasks.ts'
import { saveResults } from '../task/save-results.ts'
import { readTasks, submitTasks, warnOfPaths, type Submitted } from '../task/submit-tasks.ts'
import { waitForTasks } from '../task/wait-for-tasks.ts'
import { renderSession, renderTask, renderTasks, type TaskSummary } from '../views/task-view.ts'
import { print, printError, printJson } from '../views/print.ts'

const PATIENCE_SECONDS = '600'

const FLAGS = {
  ...TRAINER_FLAGS,
  samples: option('N', 'submit: sessions of each task; overrides num_samples'),
  priority: option('N', 'submit: priority from 0 to 100, higher first; overrides the task'),
  id: option('NAME', 'submit: id of the task; overrides task_id'),
  wait: toggle('submit: wait until the tasks have ended'),
  again: toggle('submit: run tasks again that have ended'),
  queue: toggle('submit: also queue tasks that no registered node can run'),
  patience: option('SECONDS', 'wait: how long to retry while the server does not answer', {
    default: PATIENCE_SECONDS,
  }),
  status: option('WORD', 'ls: only tasks with this status', { choices: ApiTaskState.options }),
  search: option('TEXT', 'ls: only tasks whose id contains this text'),
  limit: option('N', 'ls: maximum number of tasks', { default: '50' }),
  session: option('ID', 'show: this session with all its attempts'),
  to: option('DIR', 'results: folder for one file per task (default: standard output)'),
  follow: toggle('results: wait for further results until the task has ended'),
  cancelled: toggle('retry: also cancelled sessions'),
  json: toggle('Print JSON'),
}

export const command = defineCommand({
  name: 'task',
  description: 'Submit tasks to a server, wait for them, and get their results.',
  words: {
    name: 'ACTION FILE…|ID…',
    description:
      'submit FILE…, ls, show ID, wait ID…, results ID…, cancel ID…, retry ID… or rm ID…; files are YAML, JSON or JSONL',
  },
  flags: FLAGS,
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
      if (first === undefined) throw usageError('task', `name a task: polar task ${action} ID`)
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
        default:
          throw actionError('task', action, 'submit, ls, show, wait, results, cancel, retry or rm')
      }
    } catch (error) {
      throw explainFailure(error)
    }
  },
})

type Find = () => Promise<FoundServer>

type TaskFlags = FlagValues<typeof FLAGS>

async function submit(files: readonly string[], flags: TaskFlags, find: Find, patience: number): Promise<ExitCode> {
  if (files.length === 0) throw usageError('task', 'name the task files, as in: polar task submit task.yaml')
  const changes = {
    samples: parseNumber('task', 'samples', flags.samples, { min: 1, max: 10_000 }),
    priority: parseNumber('task', 'priority', flags.priority, { min: 0, max: 100 }),
    id: flags.id,
  }
  const server = await find().catch(async (error: unknown) => {
    // Problems of the tasks are reported before problems of the server.
    await readTasks(files, changes, { isLocal: true })
    throw error
  })
  const tasks = await readTasks(files, changes, server)
  const warning = warnOfPaths(server, tasks)
  if (warning !== undefined) printError(`${warning}\n`)
  const outcomes = await submitTasks(server, tasks, { isAgain: flags.again, isQueued: flags.queue })
  for (const outcome of outcomes) {
    if (flags.json && !flags.wait) printJson(outcome)
    else if (!flags.json) print(`${toVisibleLine(outcome.task_id)}: ${OUTCOMES[outcome.outcome]}\n`)
    for (const text of outcome.warnings ?? []) printError(`${toVisibleLine(`${outcome.task_id}: ${text}`)}\n`)
  }
  const accepted = outcomes.filter(({ outcome }) => outcome === 'created' || outcome === 'same')
  const isRejected = accepted.length < outcomes.length
  if (flags.wait && accepted.length > 0) {
    const code = await wait(
      accepted.map(({ task_id: id }) => id),
      { find, patience, asJson: flags.json },
    )
    return code === EXIT.done && isRejected ? EXIT.failed : code
  }
  if (!flags.json && !flags.wait && accepted[0] !== undefined)
    printError(
      `Wait for the result: polar task wait ${accepted
        .map(({ task_id: id }) => quote(id))
        .slice(0, 5)
        .join(' ')}\n`,
    )
  return isRejected ? EXIT.failed : EXIT.done
}

const OUTCOMES: Readonly<Record<Submitted['outcome'], string>> = {
  created: 'submitted',
  same: 'already exists with the same contents; use --again or --id to run it again',
  conflict:
    'rejected: the task_id exists with different contents; use another --id, or --again after that task has ended',
  stale: 'rejected: the policy version of the task is too old',
  cancelled: 'rejected: the task was cancelled before it was submitted',
  deleted: 'rejected: the task was deleted; use --again or --id to run it again',
  'no-node': 'rejected: no registered node can run it; start such a node, or submit with --queue',
}

async function list(words: readonly string[], flags: TaskFlags, find: Find): Promise<ExitCode> {
  if (words.length > 0) throw usageError('task', 'ls accepts no ids; use --search TEXT')
  const most = parseNumber('task', 'limit', flags.limit, { min: 1, max: 1_000_000 })
  const { client } = await find()
  const query = { status: ApiTaskState.optional().parse(flags.status), search: flags.search }
  const tasks: TaskSummary[] = []
  for await (const found of listTasks(client, query, most)) {
    if (flags.json) printJson(found)
    else tasks.push(found)
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
  if (id === undefined || more.length > 0) throw usageError('task', 'show needs one task, or --session ID')
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
  using stop = listenForStop({ twoSteps: true })
  try {
    const tasks = await waitForTasks({
      ids,
      find,
      patienceMs: patience * 1000,
      signal: stop.first,
      onEnd: asJson ? (ended) => printJson(ended) : undefined,
    })
    if (!asJson) print(renderTasks(tasks, Date.now()))
    return tasks.every(({ status }) => status === 'completed') ? EXIT.done : EXIT.failed
  } catch (error) {
    if (!stop.first.aborted) throw error
    printError(
      `Stopped waiting; the server continues the tasks. To wait again: polar task wait ${ids.map(quote).slice(0, 5).join(' ')}\n`,
    )
    return EXIT.interrupted
  }
}

async function results(ids: readonly string[], flags: TaskFlags, find: Find): Promise<ExitCode> {
  const { client } = await find()
  using stop = listenForStop({ twoSteps: true })
  const signal = stop.first
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
    else print(`${toVisibleLine(id)}: ${answer.retried_sessions} sessions are retried\n`)
  }
  return EXIT.done
}

/** Quotes an id for a shell. */
function quote(id: string): string {
  return /^[\w.:@/+-]+$/.test(id) ? id : toVisibleLine(shellWord(id))
}
