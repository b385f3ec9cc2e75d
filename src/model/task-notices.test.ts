import { expect, test } from 'vitest'
import { NO_NETWORK_NOTICE, noticesOf } from './task-notices.ts'
import { RuntimeSpec } from './task.ts'

const exec = { type: 'exec', command: 'npm install' }

test.each([
  [{ prepare: [exec] }, [NO_NETWORK_NOTICE]],
  [{ eval_prepare: [exec] }, [NO_NETWORK_NOTICE]],
  [{ prepare: [exec], allow_internet: false }, []],
  [{ prepare: [exec], allow_internet: true }, []],
  [{ prepare: [exec], allow_hosts: [] }, []],
  [{ prepare: [exec], network: 'host' }, []],
  [{ prepare: [exec], network: 'none' }, []],
  [{ prepare: [{ type: 'upload_file', source: '/a', target: '/b' }] }, []],
  [{}, []],
])('noticesOf() reports a missing network if commands may need it: %j', (runtime, notices) => {
  expect(noticesOf({ runtime: RuntimeSpec.parse(runtime) })).toEqual(notices)
})

test('noticesOf() is empty for a task without a runtime', () => {
  expect(noticesOf({ runtime: null })).toEqual([])
})
