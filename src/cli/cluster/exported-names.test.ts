import { expect, test } from 'vitest'
import { Config } from '../../config/config.ts'
import { exportedNames } from './exported-names.ts'
import { toOptions } from './slurm-options.ts'

const env = {
  PATH: '/bin',
  OPENAI_API_KEY: 'x',
  ENGINE_KEY: 'x',
  JUDGE_KEY: 'x',
  NODE_TOKEN: 'x',
  POLAR_TOKEN: 'x',
  POLAR_UPSTREAM_KEY: 'x',
  POLAR_HARNESS_DIR: '/opt',
  POLAR_SERVER_PORT: '1',
  POLAR_DATABASE_URL: 'x',
}

test('exportedNames() returns the variables that the configuration needs, and no token', () => {
  const config = Config.parse({
    engine: { key_env: 'ENGINE_KEY' },
    node: { token_env: 'NODE_TOKEN', allow: { env: ['JUDGE_KEY', 'NOT_SET'] } },
  })
  expect(exportedNames(config, env)).toEqual(['ENGINE_KEY', 'JUDGE_KEY', 'POLAR_HARNESS_DIR', 'POLAR_UPSTREAM_KEY'])
})

test('exportedNames() passes the certificate file of this machine to nodes', () => {
  const trusting = { ...env, NODE_EXTRA_CA_CERTS: '/shared/ca.pem' }
  expect(exportedNames(Config.parse({}), trusting)).toContain('NODE_EXTRA_CA_CERTS')
})

test('toOptions() renders only configured options', () => {
  const { slurm } = Config.parse({ cluster: { slurm: { partition: 'gpu', memory: '64G', gres: 'gpu:8' } } }).cluster
  expect(toOptions(slurm, ['ENGINE_KEY', 'PATH'])).toEqual([
    '--partition=gpu',
    '--nodes=1',
    '--ntasks=1',
    '--mem=64G',
    '--gres=gpu:8',
    '--export=PATH,HOME,USER,LOGNAME,SHELL,LANG,ENGINE_KEY',
  ])
})
