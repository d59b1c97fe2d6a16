// Time series by uPlot, in the colours of the page.
import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { Store } from './api';
import { useStore } from './controls';

export type Series = (number | null)[];

export interface Curve {
  label: string;
  colour: string;
  fill?: boolean;
  width?: number;
}

/** Counts up when the colours of the page change. */
export const themes = new Store(0);

const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function Chart({ label, times, data, curves, format, height = 190, sync, floor = 1, range }: {
  label: string; times: number[]; data: Series[]; curves: Curve[]; format: (value: number | null) => string; height?: number; sync?: string; floor?: number; range?: [number, number];
}) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = curves.map((curve) => curve.label).join();
  const theme = useStore(themes);
  const values = useRef<(HTMLElement | null)[]>([]);
  const spanOf = useRef(range);
  spanOf.current = range;

  useEffect(() => {
    const root = place.current!;
    const text = colour('faint');
    const grid = { stroke: colour('line'), width: 1 };
    const tell = (u: uPlot) => {
      const at = u.cursor.idx ?? (u.data[0].length - 1);
      curves.forEach((_, n) => {
        const element = values.current[n];
        if (element) element.textContent = format((u.data[n + 1]?.[at] as number | null) ?? null);
      });
    };
    const made = new uPlot(
      {
        width: Math.max(200, root.clientWidth), height, legend: { show: false },
        padding: [8, 22, 0, 0],
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, ...(sync ? { sync: { key: sync } } : {}) },
        scales: { x: { time: true, range: (_u, low, high) => spanOf.current ?? (low === high || low === null ? [low - 60, low + 60] : [low, high]) }, y: { range: (_u, _low, high) => [0, Math.max(floor, (high ?? 0) * 1.15)] } },
        axes: [
          { stroke: text, grid: { show: false }, ticks: { show: false }, size: 26, space: 72, font: '11px system-ui', values: (_u, splits) => splits.map((t) => short(t, splits)) },
          { stroke: text, grid, ticks: { show: false }, size: 58, font: '11px system-ui', splits: undefined, values: (_u, splits) => splits.map((v) => format(v)) },
        ],
        series: [{}, ...curves.map((curve) => ({
          label: curve.label, stroke: colour(curve.colour), width: curve.width ?? 1.6, points: { show: true, size: 5, fill: colour(curve.colour), filter: alone }, spanGaps: false,
          ...(curve.fill ? { fill: colour(`${curve.colour}-soft`) } : {}),
        }))],
        hooks: { setCursor: [tell], setData: [tell] },
      },
      [times, ...data] as uPlot.AlignedData, root,
    );
    plot.current = made;
    tell(made);
    const sizes = new ResizeObserver(() => made.setSize({ width: Math.max(200, root.clientWidth), height }));
    sizes.observe(root);
    return () => {
      sizes.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [names, height, theme, sync]);

  useEffect(() => {
    plot.current?.setData([times, ...data] as uPlot.AlignedData);
  }, [times, data, range?.[0], range?.[1]]);

  return (
    <figure class="chart" aria-label={label}>
      <figcaption class="legend">
        {curves.map((curve, at) => (
          <span key={curve.label} class="legend-item">
            <span class={`swatch c-${curve.colour}`} aria-hidden="true" />
            {curve.label} <b ref={(element) => void (values.current[at] = element)}>–</b>
          </span>
        ))}
      </figcaption>
      <div ref={place} role="img" aria-label={label} />
    </figure>
  );
}

/** Values without a neighbour, which no line leads to. */
function alone(u: uPlot, series: number): number[] {
  const values = u.data[series]!;
  return [...values.keys()].filter((at) => values[at] != null && values[at - 1] == null && values[at + 1] == null);
}

function short(seconds: number, all: number[]): string {
  const date = new Date(seconds * 1000);
  const whole = (all.at(-1) ?? 0) - (all[0] ?? 0);
  if (whole > 3 * 86400) return date.toLocaleDateString([], { month: 'short', day: 'numeric' });
  const two = (n: number) => String(n).padStart(2, '0');
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return whole > 0 && whole < 300 ? `${clock}:${two(date.getSeconds())}` : clock;
}

/** A small curve without axes. */
export function Spark({ values, tone = 'accent' }: { values: Series; tone?: string }) {
  const found = values.slice(-60).map((value) => value ?? 0);
  if (found.length < 2) return <svg class="spark" viewBox="0 0 100 24" aria-hidden="true" />;
  const most = Math.max(...found, 1e-9);
  const points = found.map((value, at) => `${((at / (found.length - 1)) * 100).toFixed(1)},${(23 - (value / most) * 21).toFixed(1)}`).join(' ');
  return (
    <svg class={`spark c-${tone}`} viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
      <polygon points={`0,24 ${points} 100,24`} class="spark-fill" />
      <polyline points={points} fill="none" stroke="currentColor" stroke-width="1.5" vector-effect="non-scaling-stroke" />
    </svg>
  );
}

/** Values of usage at every step of a time; steps without requests have no row, and count as none. */
export function everyStep(answer: { from: string; to: string; rows: any[] } | undefined, seconds: number) {
  const rows = new Map((answer?.rows ?? []).map((row) => [Date.parse(row.time) / 1000, row]));
  const [from, to] = [answer?.from, answer?.to].map((time) => Date.parse(time ?? '') / 1000) as [number, number];
  const times: number[] = [];
  for (let time = Math.floor(from / seconds) * seconds; time < to; time += seconds) times.push(time);
  const column = (name: string, none: number | null = null) => times.map((time) => rows.get(time)?.[name] ?? none);
  const rate = (name: string) => column(name, 0).map((value) => (value ?? 0) / seconds);
  return { times, column, rate, range: [times[0] ?? 0, times.at(-1) ?? 60] as [number, number], empty: !rows.size };
}
