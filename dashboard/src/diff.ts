// Differences between two JSON documents, line by line.

export interface Line {
  sort: 'same' | 'gone' | 'new' | 'skip';
  text: string;
}

const AROUND = 3;

/** The lines of both, with `gone` for the old and `new` for the new ones; long runs of equal lines are left out. */
export function diff(old: unknown, now: unknown): Line[] {
  const [a, b] = [lines(old), lines(now)];
  let begin = 0;
  while (begin < a.length && begin < b.length && a[begin] === b[begin]) begin += 1;
  let end = 0;
  while (end < a.length - begin && end < b.length - begin && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const middle = compare(a.slice(begin, a.length - end), b.slice(begin, b.length - end));
  const same = (text: string): Line => ({ sort: 'same', text });
  const all = [...a.slice(0, begin).map(same), ...middle, ...a.slice(a.length - end).map(same)];
  return fold(all);
}

function lines(value: unknown): string[] {
  return value === undefined || value === null ? [] : JSON.stringify(value, null, 2).split('\n');
}

/** The longest common subsequence; of very long texts everything counts as changed. */
function compare(a: string[], b: string[]): Line[] {
  if (a.length * b.length > 4_000_000) {
    return [...a.map((text): Line => ({ sort: 'gone', text })), ...b.map((text): Line => ({ sort: 'new', text }))];
  }
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1]! + 1 : Math.max(table[(i + 1) * width + j]!, table[i * width + j + 1]!);
    }
  }
  const found: Line[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push({ sort: 'same', text: a[i]! });
      i += 1;
      j += 1;
    } else if (i < a.length && (j === b.length || table[(i + 1) * width + j]! >= table[i * width + j + 1]!)) {
      found.push({ sort: 'gone', text: a[i]! });
      i += 1;
    } else {
      found.push({ sort: 'new', text: b[j]! });
      j += 1;
    }
  }
  return found;
}

function fold(all: Line[]): Line[] {
  const near = all.map(() => false);
  all.forEach((line, at) => {
    if (line.sort === 'same') return;
    for (let other = Math.max(0, at - AROUND); other <= Math.min(all.length - 1, at + AROUND); other++) near[other] = true;
  });
  const found: Line[] = [];
  let skipped = 0;
  all.forEach((line, at) => {
    if (near[at]) {
      if (skipped) found.push({ sort: 'skip', text: `${skipped} equal lines` });
      skipped = 0;
      found.push(line);
    } else skipped += 1;
  });
  if (skipped && found.length) found.push({ sort: 'skip', text: `${skipped} equal lines` });
  return found;
}

/** A copy without the fields that the gateway keeps itself. */
export function bare(value: any): any {
  if (!value || typeof value !== 'object') return value;
  const { create_time: _c, update_time: _u, ...rest } = value;
  return rest;
}

export const equal = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);
