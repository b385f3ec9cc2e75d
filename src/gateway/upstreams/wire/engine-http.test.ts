import { expect, test } from 'vitest'
import { rejectionError, type Rejection } from './engine-http.ts'

const rejected = (fields: Partial<Rejection>) =>
  rejectionError({ status: 400, message: 'no', labels: [], ...fields }, 'http://engine')

test.each<[string, Partial<Rejection>]>([
  ['vLLM', { message: 'The model `x` does not exist.', param: 'model', labels: ['NotFoundError'] }],
  ['an older vLLM', { message: 'The model `x` does not exist.', labels: ['NotFoundError'] }],
  ['OpenAI', { message: "The model 'x' does not exist or you do not have access to it.", labels: ['model_not_found'] }],
  ['llama.cpp', { message: 'model not found', labels: ['not_found_error'] }],
])('a wrong model name, as %s reports it, is an error of the caller', (_, fields) => {
  const error = rejected({ ...fields, status: 404 })
  expect(error).toMatchObject({ code: 'upstream.refused', blame: 'caller', retryable: false })
  expect(error.failure).toMatchObject({ status: 404, message: fields.message })
})

test('a missing path is an error of the infrastructure', () => {
  const error = rejected({ status: 404, message: 'Not Found', labels: ['Not Found'] })
  expect(error).toMatchObject({ code: 'upstream.failed', blame: 'infrastructure' })
})

test('an image that the model does not accept is an error of the caller, also with status 500', () => {
  const message = 'image input is not supported - hint: if this is unexpected, you may need to provide the mmproj'
  const error = rejected({ status: 500, message, labels: ['server_error'] })
  expect(error).toMatchObject({ code: 'upstream.refused', blame: 'caller', retryable: false })
  expect(error.failure.status).toBe(400)
  expect(rejected({ status: 500, message: 'broken' })).toMatchObject({ code: 'upstream.failed', retryable: true })
})
