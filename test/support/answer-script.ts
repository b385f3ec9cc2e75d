import { join } from 'node:path'

/**
 * A script for the tiny engine that answers every call. For tests that need an answer but not the model: loading the
 * model costs more CPU time than the rest of a short test.
 */
export const ANSWER_SCRIPT = join(import.meta.dirname, 'answer.yaml')

/** The flags of a command that starts the tiny engine with this script. */
export const SCRIPTED = ['--script', ANSWER_SCRIPT]
