/**
 * Records the answers of a real Kubernetes to the requests of the runtime. Tests compare the fake Kubernetes with them:
 *
 *   node scripts/record-kubernetes.ts KUBECONFIG IMAGE > test/support/kubernetes-answers.json
 *
 * The image needs a shell and must be on the machines already. Creates one pod and one policy in the namespace of the
 * context, and removes them.
 */
import { recordKubernetes } from '../test/support/record-kubernetes.ts'

const [kubeconfig, image] = process.argv.slice(2)
if (kubeconfig === undefined || image === undefined) throw new Error('record-kubernetes.ts KUBECONFIG IMAGE')
console.log(JSON.stringify(await recordKubernetes(kubeconfig, image), undefined, 2))
