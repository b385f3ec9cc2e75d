import { expect, test } from 'vitest'
import { NodeStageMetrics } from '../../model/node.ts'
import { StageWidths } from '../../node/session/stages.ts'
import { createStageView, renderStages } from './stage-view.ts'

const widths = StageWidths.parse({ init: 4, ready: 2, run: 8, postrun: 3 })

function optionsOf(metrics: Partial<NodeStageMetrics>, progress: { done: number; total: number; note: string }) {
  return { widths, metrics: () => NodeStageMetrics.parse(metrics), progress: () => progress }
}

test('renderStages() shows the load of each stage, the queues and the total progress', () => {
  const metrics = {
    init_queue_depth: 12,
    init_inflight: 4,
    ready_depth: 1,
    run_inflight: 2,
    postrun_queue_depth: 5,
    postrun_inflight: 3,
  }
  expect(renderStages(optionsOf(metrics, { done: 3, total: 12, note: 'mean reward 0.333' }))).toEqual([
    '  init    ████████████████████████ 4/4  12 waiting',
    '  ready   ████████████░░░░░░░░░░░░ 1/2',
    '  run     ██████░░░░░░░░░░░░░░░░░░ 2/8',
    '  grade   ████████████████████████ 3/3  5 waiting',
    '  done    ██████░░░░░░░░░░░░░░░░░░ 3/12  mean reward 0.333',
  ])
})

test('renderStages() shows empty bars for an idle node', () => {
  const idle = { ...optionsOf({}, { done: 0, total: 0, note: '' }), widths: { ...widths, ready: 0 } }
  expect(renderStages(idle)).toEqual([
    '  init    ░░░░░░░░░░░░░░░░░░░░░░░░ 0/4',
    '  ready   ░░░░░░░░░░░░░░░░░░░░░░░░ 0/0',
    '  run     ░░░░░░░░░░░░░░░░░░░░░░░░ 0/8',
    '  grade   ░░░░░░░░░░░░░░░░░░░░░░░░ 0/3',
    '  done    ░░░░░░░░░░░░░░░░░░░░░░░░ 0/0',
  ])
})

test('renderStages() limits a bar to its width if refills exceed the requested sessions', () => {
  expect(renderStages(optionsOf({}, { done: 5, total: 4, note: '' })).at(-1)).toBe(
    '  done    ████████████████████████ 5/4',
  )
})

function screen(isTTY: boolean) {
  let written = ''
  const write = (text: string): boolean => {
    written += text
    return true
  }
  return { stream: { isTTY, columns: 30, write }, text: () => written }
}

test('createStageView() prints above the bars, cuts them to the screen width, and removes them at the end', () => {
  const { stream, text } = screen(true)
  {
    using view = createStageView({ ...optionsOf({}, { done: 0, total: 1, note: '' }), stream })
    view.print('COMPLETED  one\n')
    view.print('COMPLETED  two\n')
  }
  const [first, second, end] = text().split('\x1b[5F\x1b[0J')
  expect(first).toMatch(/^COMPLETED {2}one\n( {2}\w.*\n){5}$/)
  expect(second).toMatch(/^COMPLETED {2}two\n( {2}\w.*\n){5}$/)
  expect(end).toBe('')
  for (const line of text().split('\n')) expect(line.replace('\x1b[5F\x1b[0J', '').length).toBeLessThanOrEqual(40)
})

test('createStageView() shows no bars without a terminal', () => {
  const { stream, text } = screen(false)
  {
    using view = createStageView({ ...optionsOf({}, { done: 0, total: 1, note: '' }), stream })
    view.print('COMPLETED  one\n')
  }
  expect(text()).toBe('COMPLETED  one\n')
})
