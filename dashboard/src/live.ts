// Figures of the last hour, kept up by the gateway's stream while somebody looks.
import { Store, stream, type Json } from './api';

export interface Busy {
  id: string;
  rps: number;
  errors: number;
  ms: number;
}

export interface Live {
  open: boolean;
  t: number[];
  columns: Record<string, (number | null)[]>;
  top: { routes: Busy[]; consumers: Busy[] };
}

const KEPT = 3600;
const empty: Live = { open: false, t: [], columns: {}, top: { routes: [], consumers: [] } };
export const live = new Store<Live>(empty);

let users = 0;
let end: (() => void) | undefined;

/** Follows the stream until the function that is returned is called. */
export function followLive() {
  users += 1;
  if (users === 1) {
    end = stream('/weir/v1/live', {
      history: (data: Json) => {
        const { t, ...columns } = data;
        live.value = { ...live.value, open: true, t, columns };
      },
      frame: (data: Json) => {
        const { t, top, ...values } = data;
        const before = live.value;
        const columns: Live['columns'] = {};
        for (const [name, value] of Object.entries(values)) {
          columns[name] = [...(before.columns[name] ?? []).slice(-(KEPT - 1)), value as number | null];
        }
        live.value = { open: true, t: [...before.t.slice(-(KEPT - 1)), t], columns, top };
      },
    }, (open) => (live.value = { ...live.value, open }));
  }
  return () => {
    users -= 1;
    if (users === 0) {
      end?.();
      live.value = empty;
    }
  };
}

export const last = (values: (number | null)[] | undefined): number | null => values?.at(-1) ?? null;

/** Sums of neighbours, so that a long range has no more points than a screen. */
export function thin(times: number[], all: (number | null)[][], most: number): { times: number[]; all: (number | null)[][] } {
  const step = Math.ceil(times.length / most);
  if (step <= 1) return { times, all };
  const groups: number[][] = [];
  // From the end, so that groups stay what they are while new values come.
  for (let at = times.length; at > 0; at -= step) groups.unshift([Math.max(0, at - step), at]);
  const mean = (values: (number | null)[]) => {
    const known = values.filter((value): value is number => value !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  };
  return {
    times: groups.map(([, to]) => times[to! - 1]!),
    all: all.map((values) => groups.map(([from, to]) => mean(values.slice(from, to)))),
  };
}
