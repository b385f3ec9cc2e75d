import type { Database } from '../../src/store/database.ts'

/** Returns contradictions between the tables, which must agree after any step and any crash. */
export async function auditTables({ db }: Database): Promise<string[]> {
  // One transaction reads one snapshot of all tables.
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
  const again = Map.groupBy(
    events.filter(({ data }) => (JSON.parse(data) as { reopened?: boolean }).reopened),
    ({ task_id }) => task_id,
  )
  for (const task of tasks) {
    const own = sessionsOf.get(task.id) ?? []
    const tries = own.flatMap(({ id }) => attemptsOf.get(id) ?? [])
    const settled = tries.filter(({ ending, place }) => {
      return (ending === 'accepted' || ending === 'lost') && place === null
    }).length
    const isOver = task.status !== 'running'
    expectSame(`sessions of ${task.id}`, own.length, task.need)
    expectSame(`whether ${task.id} has a time of its end`, task.ended_at !== null, isOver && !task.is_tombstone)
    if (task.deleted_at !== null) {
      expectSame(`callbacks of ${task.id}, which is deleted,`, callbacksOf.get(task.id)?.length ?? 0, 0)
      continue
    }
    expectSame(`ended of ${task.id}`, task.ended, own.filter(({ state }) => state === 'ended').length)
    for (const verdict of ['valid', 'failed', 'cancelled'] as const) {
      expectSame(`${verdict} of ${task.id}`, task[verdict], own.filter((each) => each.verdict === verdict).length)
    }
    expectSame(`usable of ${task.id}`, task.usable, own.filter(({ is_usable }) => is_usable).length)
    expectSame(`the sum of ${task.id}`, task.valid + task.failed + task.cancelled, task.ended)
    expectSame(`refills of ${task.id}`, task.refills, settled)
    const places = tries.flatMap(({ place }) => place ?? []).toSorted((a, b) => a - b)
    expectSame(`places of ${task.id}`, places.join(), Array.from({ length: task.endings }, (_, i) => i + 1).join())
    expectSame(`whether ${task.id} is over`, isOver, task.ended === task.need)
    // A retried task has another completion event.
    const completions = (told.get(task.id)?.length ?? 0) - (again.get(task.id)?.length ?? 0)
    if (!task.is_tombstone) expectSame(`completions told of ${task.id}`, completions, isOver ? 1 : 0)
    // A retry keeps delivered callbacks of the task and deletes waiting callbacks.
    const calls = callbacksOf.get(task.id)?.filter(({ state }) => state === 'waiting').length ?? 0
    const all = callbacksOf.get(task.id)?.length ?? 0
    const isCalled = isOver && task.callback_url !== null
    const most = isCalled ? (told.get(task.id)?.length ?? 0) : (again.get(task.id)?.length ?? 0)
    expectSame(`whether callbacks of ${task.id} are enough`, all >= (isCalled ? 1 : 0) && all <= most, true)
    expectSame(`whether callbacks of ${task.id} wait once`, calls <= (isCalled ? 1 : 0), true)
  }
  for (const session of sessions) {
    const own = attemptsOf.get(session.id) ?? []
    const over = own.filter(({ attempt }) => attempt < session.attempt)
    expectSame(`attempts before the last of ${session.id}`, over.length, session.attempt - 1)
    expectSame(
      `whether ${session.id} waits`,
      session.state === 'queued' || session.state === 'resting',
      session.node_id === null && session.state !== 'ended',
    )
    expectSame(`attempts of ${session.id}`, own.length, over.length + (session.state === 'ended' ? 1 : 0))
    expectSame(`whether ${session.id} has a verdict`, session.verdict !== null, session.state === 'ended')
  }
  const accepted = attempts.filter(({ ending }) => ending === 'accepted').map(keyOf)
  expectSame('the accepted attempts', accepted.toSorted().join(), results.map(keyOf).toSorted().join())
  return problems
}

function keyOf({ session_id, attempt }: { session_id: string; attempt: number }): string {
  return `${session_id}/${attempt}`
}
