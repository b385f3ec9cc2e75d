import { checkNotifications } from './check-news.ts'
import { checkReads } from './check-reads.ts'
import { checkResults } from './check-results.ts'
import { checkTasks } from './check-tasks.ts'
import { gatherFacts, type Violation } from './facts.ts'
import type { Entry, History } from './history.ts'

/** Returns the violations of the server's guarantees in a history; empty if there are none. */
export function checkHistory(history: History): Violation[] {
  const facts = gatherFacts(history)
  const { database, left, crashes, unfinished } = history.final
  return [
    ...checkTasks(facts),
    ...checkResults(facts),
    ...checkReads(facts),
    ...checkNotifications(facts),
    ...database.problems.map((message) => ({ rule: 'books-disagree', about: 'database', message })),
    ...unfinished.map((message) => ({ rule: 'not-over-in-time', about: 'trainer', message })),
    ...crashes.map((message) => ({ rule: 'crashed', about: 'machine', message })),
    ...left.map((message) => ({ rule: 'left-behind', about: 'machine', message })),
  ]
}

/** Returns a violation with the entries of its task or session. */
export function explain({ rule, about, message }: Violation, { entries }: Pick<History, 'entries'>): string {
  const own = entries.filter((entry) => isAbout(entry, about)).map((entry) => `    ${JSON.stringify(entry)}`)
  return [`${rule}: ${about}: ${message}`, ...own.slice(-40)].join('\n')
}

function isAbout(entry: Entry, about: string): boolean {
  switch (entry.kind) {
    case 'call':
    case 'callback':
      return entry.taskId === about
    case 'order':
    case 'report':
    case 'run':
      return entry.sessionId === about
    case 'fault':
      return false
  }
}
