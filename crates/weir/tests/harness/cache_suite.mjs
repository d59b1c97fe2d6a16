// Runs the public tests of HTTP caches against the cache at URL: a line of JSON for each test, with its kind, its name and
// the reason where it fails.
//
//     node cache_suite.mjs FOLDER URL
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const [folder, url] = process.argv.slice(2)
const part = (path) => import(pathToFileURL(`${folder}/${path}`))
const fetch = createRequire(`${folder}/client/`)('node-fetch')
const { default: suites } = await part('tests/index.mjs')
const { runTests, getResults } = await part('client/runner.mjs')

await runTests(suites, fetch, false, url)
const kinds = new Map(suites.flatMap((suite) => suite.tests.map((test) => [test.id, test.kind ?? 'required'])))
for (const [name, result] of Object.entries(getResults())) {
  const reason = result === true ? null : result[1]
  console.log(JSON.stringify({ name, kind: kinds.get(name), reason }))
}
