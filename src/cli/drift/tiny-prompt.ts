import { loadChatTemplate } from '../../engine/chat-template.ts'
import { embeddedModelFolder } from '../../engine/model-package.ts'
import { loadTokenizer } from '../../engine/tokenizer.ts'
import { vllmFields } from '../../gateway/chat-wire/chat-fields.ts'
import { renderChatBody } from '../../gateway/chat-wire/chat-request.ts'
import type { RenderPrompt } from './suggest-rules.ts'

/** As the tiny engine makes prompts: its template and tokenizer are ours, so nobody has to be asked. */
export async function loadTinyPrompt(): Promise<RenderPrompt> {
  const folder = embeddedModelFolder()
  const template = await loadChatTemplate(folder, await loadTokenizer(folder), { images: true })
  return (request, { opensAnswer }) => {
    const body = JSON.parse(renderChatBody(request, {}, vllmFields).text) as {
      messages: Record<string, unknown>[]
      tools?: Record<string, unknown>[] | null
    }
    const tools = body.tools == null ? {} : { tools: body.tools }
    return template.tokenise({ messages: body.messages, ...tools, addGenerationPrompt: opensAnswer })
  }
}
