import { useEffect, useMemo, useState } from 'preact/hooks';
import { about, get, problems, query, type Json } from '../api';
import { Chart, everyStep, Spark, type Curve, type Series } from '../chart';
import { Badge, Card, Empty, Loading, Page, Segments, useLoad, useStore } from '../controls';
import { ago, bytes, count, ms, percent, span } from '../format';
import { followLive, last, live, thin, type Busy } from '../live';
import { href, resourceHref } from '../router';

type Range = '5m' | '15m' | '1h' | '24h' | '7d' | '30d';
const LIVE: Partial<Record<Range, number>> = { '5m': 300, '15m': 900, '1h': 3600 };
const STEPS: Partial<Record<Range, string>> = { '24h': 'minute', '7d': 'hour', '30d': 'day' };

const REQUESTS: Curve[] = [
  { label: 'all', colour: 'accent', fill: true },
  { label: '4xx', colour: 'warn' },
  { label: '5xx', colour: 'bad', width: 2 },
];
const LATENCY: Curve[] = [
  { label: 'p50', colour: 'accent' },
  { label: 'p95', colour: 'violet' },
  { label: 'p99', colour: 'warn' },
];

export function Overview() {
  const [range, setRange] = useState<Range>('5m');
  const info = useStore(about);
  useEffect(followLive, []);
  const ranges: Range[] = info?.usage ? ['5m', '15m', '1h', '24h', '7d', '30d'] : ['5m', '15m', '1h'];
  return (
    <Page title="Overview" hint={info && <>Weir {info.version} on {info.host}, up for {span(Date.now() / 1000 - info.started)}, {info.workers} {info.workers === 1 ? 'worker' : 'workers'}</>}
      actions={<Segments label="Time range" value={range} onChange={setRange} options={ranges.map((id) => ({ id, label: id }))} />}>
      <Problems />
      <Tiles />
      {LIVE[range] ? <LiveCharts seconds={LIVE[range]!} /> : <UsageCharts range={range} />}
      <div class="grid two">
        <Top />
        <Health />
      </div>
      {info?.family === 'apisix' && <Changes />}
    </Page>
  );
}

function Problems() {
  const found = useStore(problems)?.problems ?? [];
  if (!found.length) return null;
  const bad = found.some((one) => one.severity === 'error');
  return (
    <a class={`notice link ${bad ? 'bad' : 'warn'}`} href={href(['problems'])}>
      <Badge tone={bad ? 'bad' : 'warn'}>{found.length}</Badge>
      <span>{found[0]!.text}{found.length > 1 && `, and ${found.length - 1} more`}</span>
    </a>
  );
}

function Tile({ label, value, note, values, tone }: { label: string; value: string; note?: string; values?: Series; tone?: string }) {
  return (
    <div class="tile">
      <div class="tile-label">{label}</div>
      <div class="tile-value">{value}</div>
      <div class="tile-note">{note ?? '\u00a0'}</div>
      {values && <Spark values={values} tone={tone} />}
    </div>
  );
}

function Tiles() {
  const { columns, t, open } = useStore(live);
  const at = (name: string) => last(columns[name]);
  const answers = (columns.s5 ?? []).map((_, n) => ['s2', 's3', 's4', 's5'].reduce((sum, name) => sum + (columns[name]?.[n] ?? 0), 0));
  const errors = answers.map((all, n) => (all ? (columns.s5?.[n] ?? 0) / all : 0));
  const lost = !open && t.length > 0;
  return (
    <div class={`tiles ${lost ? 'stale' : ''}`} aria-busy={!t.length}>
      <Tile label="Requests/s" value={count(at('rps'))} note={lost ? 'connection lost' : 'now'} values={columns.rps} />
      <Tile label="Server errors" value={percent(last(errors))} note={`${count(at('s4'))} client errors a second`} values={errors} tone="bad" />
      <Tile label="Latency p50" value={ms(at('p50'))} note={`gateway ${ms(at('own50'))}`} values={columns.p50} tone="violet" />
      <Tile label="Latency p99" value={ms(at('p99'))} note={`upstream ${ms(at('up99'))}`} values={columns.p99} tone="warn" />
      <Tile label="Connections" value={count(at('connections'))} note={`${count(at('up_active'))} to upstreams`} values={columns.connections} />
      <Tile label="Processor" value={at('cpu') === null ? '–' : `${count(at('cpu'))} %`} note="of one core" values={columns.cpu} tone="violet" />
      <Tile label="Memory" value={bytes(at('memory'))} note={`revision ${count(at('revision'))}`} values={columns.memory} />
    </div>
  );
}

const POINTS = 360;

function LiveCharts({ seconds }: { seconds: number }) {
  const { t, columns } = useStore(live);
  const [side, setSide] = useState<'all' | 'upstream' | 'gateway'>('all');
  const shown = useMemo(() => {
    const from = t.length ? t.at(-1)! - seconds : 0;
    const begin = t.findIndex((time) => time >= from);
    const names = ['rps', 's4', 's5', 'p50', 'p95', 'p99', 'up50', 'up95', 'up99', 'own50', 'own99', 'cpu', 'memory', 'connections', 'up_active'];
    const cut = thin(t.slice(begin), names.map((name) => (columns[name] ?? []).slice(begin)), POINTS);
    return { t: cut.times, by: Object.fromEntries(names.map((name, at) => [name, cut.all[at]!])) };
  }, [t, columns, seconds]);
  const { by } = shown;
  const latency = { all: [by.p50!, by.p95!, by.p99!], upstream: [by.up50!, by.up95!, by.up99!], gateway: [by.own50!, by.own99!] }[side];
  const curves = side === 'gateway' ? [LATENCY[0]!, LATENCY[2]!] : LATENCY;
  return (
    <div class="grid two">
      <Card title="Requests a second">
        <Chart label="Requests a second" sync="live" times={shown.t} data={[by.rps!, by.s4!, by.s5!]} curves={REQUESTS} format={count} />
      </Card>
      <Card title="Latency" actions={<Segments label="Part of the time" value={side} onChange={setSide} options={[{ id: 'all', label: 'whole' }, { id: 'upstream', label: 'upstream' }, { id: 'gateway', label: 'gateway' }]} />}>
        <Chart key={side} label="Latency" sync="live" times={shown.t} data={latency} curves={curves} format={ms} floor={0.01} />
      </Card>
      <Card title="Processor">
        <Chart label="Processor" sync="live" height={130} times={shown.t} data={[by.cpu!]} curves={[{ label: 'of one core', colour: 'violet', fill: true }]} format={(v) => (v === null ? '–' : `${count(v)} %`)} floor={5} />
      </Card>
      <Card title="Connections">
        <Chart label="Connections" sync="live" height={130} times={shown.t} data={[by.connections!, by.up_active!]} curves={[{ label: 'clients', colour: 'accent', fill: true }, { label: 'upstreams', colour: 'violet' }]} format={count} floor={4} />
      </Card>
    </div>
  );
}

function UsageCharts({ range }: { range: Range }) {
  const step = STEPS[range]!;
  const path = '/weir/v1/usage' + query({ from: `-${range}`, step, percentiles: '50,95,99', limit: 10000 });
  const { data, error } = useLoad(() => get(path), [path]);
  const shown = useMemo(() => everyStep(data, { minute: 60, hour: 3600, day: 86400 }[step]!), [data]);
  const { times, column, rate } = shown;
  if (error) return <Card><Empty title={error.message} /></Card>;
  if (data && shown.empty) return <Card><Empty title="No request in this time" icon="usage" /></Card>;
  if (!data) return <Loading />;
  return (
    <div class="grid two">
      <Card title="Requests a second">
        <Chart label="Requests a second" times={times} range={shown.range} sync="usage" data={[rate('requests'), rate('client_errors'), rate('server_errors')]} curves={REQUESTS} format={count} floor={0.1} />
      </Card>
      <Card title="Latency">
        <Chart label="Latency" times={times} range={shown.range} sync="usage" data={[column('p50_ms'), column('p95_ms'), column('p99_ms')]} curves={LATENCY} format={ms} floor={0.01} />
      </Card>
    </div>
  );
}

function Top() {
  const { top, t } = useStore(live);
  const [which, setWhich] = useState<'routes' | 'consumers'>('routes');
  const rows: Busy[] = top[which];
  const most = Math.max(...rows.map((row) => row.rps), 1e-9);
  return (
    <Card title="Busiest now" actions={<Segments label="Busiest" value={which} onChange={setWhich} options={[{ id: 'routes', label: 'routes' }, { id: 'consumers', label: 'consumers' }]} />}>
      {rows.length ? (
        <table class="plain">
          <thead><tr><th>{which === 'routes' ? 'Route' : 'Consumer'}</th><th class="num">Requests/s</th><th class="num">Errors</th><th class="num">Mean</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.id}>
                <td><a href={resourceHref(`${which}/${row.id}`)}>{row.id}</a><meter class="bar" min={0} max={most} value={row.rps} aria-label={`${row.id}: share`} /></td>
                <td class="num">{count(row.rps)}</td>
                <td class="num">{row.errors ? <Badge tone="bad">{percent(row.errors)}</Badge> : '0 %'}</td>
                <td class="num">{ms(row.ms)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : <Empty title={t.length ? 'No request in the last seconds' : 'Waiting for figures'} icon="overview">{which === 'consumers' && 'Requests without authentication have no consumer.'}</Empty>}
    </Card>
  );
}

function Health() {
  const health = useStore(problems)?.health ?? [];
  return (
    <Card title="Health of upstreams">
      {health.length ? (
        <ul class="health">
          {health.slice(0, 12).map((upstream) => (
            <li key={upstream.key}>
              <a href={resourceHref(upstream.key)}>{upstream.key}</a>
              <span class="chips">
                {upstream.nodes.map((node: Json) => (
                  <Badge key={node.address} tone={node.status === 'healthy' ? 'good' : node.status === 'unhealthy' ? 'bad' : 'warn'}>{node.address} {node.status.replace('_', ' ')}</Badge>
                ))}
              </span>
            </li>
          ))}
        </ul>
      ) : <Empty title="No upstream has checks" icon="upstreams">Add <code>checks</code> to an upstream to see its nodes here.</Empty>}
    </Card>
  );
}

function Changes() {
  const info = useStore(about);
  const { data, error } = useLoad(() => get('/weir/v1/history?limit=6'), [info?.revision]);
  return (
    <Card title="Last changes" actions={<a href={href(['history'])}>All</a>}>
      {error || (data && !data.commits.length) ? <Empty title={error ? 'Earlier versions are not kept here' : 'No change yet'} icon="history">{error?.message}</Empty> : (
        <table class="plain">
          <thead><tr><th>Revision</th><th>What</th><th>By</th><th class="num">When</th></tr></thead>
          <tbody>
            {(data?.commits ?? []).map((commit: Json) => (
              <tr key={commit.revision}>
                <td><a href={href(['history'], { revision: String(commit.revision) })}>{commit.revision}</a></td>
                <td>{summary(commit)}</td>
                <td>{commit.author ?? '–'}</td>
                <td class="num">{ago(commit.time)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Card>
  );
}

export function summary(commit: Json) {
  const first: Json = commit.changes[0];
  if (!first) return 'nothing';
  const verb = first.omitted ? 'changed' : first.old === null ? 'created' : first.new === null ? 'deleted' : 'changed';
  const tone = verb === 'created' ? 'good' : verb === 'deleted' ? 'bad' : 'plain';
  return <><Badge tone={tone}>{verb}</Badge> <code>{first.key}</code>{commit.changes.length > 1 && ` and ${commit.changes.length - 1} more`}</>;
}
