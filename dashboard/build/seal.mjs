// Leaves the digest of the sources beside the built files; crates/dashboard/tests/built.rs compares it without Node.
import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';

const root = new URL('..', import.meta.url).pathname;
const below = (folder) =>
  readdirSync(root + folder, { withFileTypes: true }).flatMap((entry) =>
    entry.isDirectory() ? below(`${folder}/${entry.name}`) : [`${folder}/${entry.name}`]);
const names = ['index.html', 'package.json', 'package-lock.json', 'tsconfig.json', 'vite.config.ts', ...below('src'), ...below('public')];
const hash = createHash('sha256');
// The order of bytes, as Rust sorts.
for (const name of names.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)))) {
  const content = readFileSync(root + name);
  hash.update(`${name}\n${content.length}\n`);
  hash.update(content);
}
writeFileSync(`${root}dist/sources.sha256`, `${hash.digest('hex')}\n`);
const script = `${root}dist/dashboard/app.js`;
writeFileSync(script, `/* Weir, Apache-2.0. With Preact and uPlot, MIT: dashboard/NOTICES.md */\n${readFileSync(script)}`);
