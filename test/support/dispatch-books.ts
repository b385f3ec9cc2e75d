import type { Database } from '../../src/store/database.ts'

/** Whether the tables agree with each other, as they must after any step and any crash. What does not, in words. */
export async function auditBooks({ db }: Database): Promise<string[]> {
  // One transaction, so that all of it is of one moment.
  const { tasks, sessions, attempts, results, events, callbacks } = await db
    .transaction()
    .setIsolationLevel('repeatable read')
    .execute(async (tx) => ({
      tasks: await tx.selectFrom('tasks').selectAll().execute(),
      sessions: await tx.selectFrom('sessions').selectAll().execute(),
      attempts: await tx.selectFrom('attempts').selectAll().orderBy('attempt').execute(),
      results: await tx.selectFrom('results').selectAll().execute(),
      events: await tx.selectFrom('events').selectAll().execute(),
      callbacks: await tx.selectFrom('callbacks').selectAll().execute(),
    }))
  const problems: string[] = []
  const expectSame = (what: string, actual: unknown, expected: unknown): void => {
    if (actual !== expected) problems.push(`${what} is ${String(actual)}, not ${String(expected)}`)
  }
  const sessionsOf = Map.groupBy(sessions, (session) => session.task_id)
  const attemptsOf = Map.groupBy(attempts, (attempt) => attempt.session_id)
  const callbacksOf = Map.groupBy(callbacks, (callback) => callback.task_id)
  const told = Map.groupBy(
    events.filter(({ type }) => type === 'task.completed'),
    ({ data }) => (JSON.parse(data) as { task_id: string }).task_id,
  )
  for (const task of tasks) {
    const own = sessionsOf.get(task.id) ?? []
    const tries = own.flatMap(({ id }) => attemptsOf.get(id) ?? [])
    const settled = tries.filter(({ ending }) => ending === 'accepted' || ending === 'lost').length
    const isOver = task.status !== 'running'
    expectSame(`sessions of ${task.id}`, own.length, task.need)
    expectSame(`ended of ${task.id}`, task.ended, own.filter(({ state }) => state === 'ended').length)
    expectSame(`cancelled of ${task.id}`, task.cancelled, own.filter(({ status }) => status === 'CANCELLED').length)
    expectSame(`the sum of ${task.id}`, task.valid + task.failed + task.cancelled, task.ended)
    expectSame(`refills of ${task.id}`, task.refills, settled - task.valid - task.failed)
    expectSame(`whether ${task.id} is over`, isOver, task.ended === task.need)
    expectSame(`completions told of ${task.id}`, told.get(task.id)?.length ?? 0, isOver ? 1 : 0)
    const calls = isOver && task.callback_url !== null ? 1 : 0
    expectSame(`callbacks of ${task.id}`, callbacksOf.get(task.id)?.length ?? 0, calls)
  }
  for (const session of sessions) {
    const own = attemptsOf.get(session.id) ?? []
    const over = own.filter(({ attempt }) => attempt < session.attempt)
    expectSame(`attempts before the last of ${session.id}`, over.length, session.attempt - 1)
    expectSame(
      `whether ${session.id} waits`,
      session.state === 'queued',
      session.node_id === null && session.state !== 'ended',
    )
    if (session.state !== 'ended') expectSame(`attempts of ${session.id}`, own.length, over.length)
  }
  const accepted = attempts.filter(({ ending }) => ending === 'accepted').map(keyOf)
  expectSame('the accepted attempts', accepted.toSorted().join(), results.map(keyOf).toSorted().join())
  return problems
}

function keyOf({ session_id, attempt }: { session_id: string; attempt: number }): string {
  return `${session_id}/${attempt}`
}
