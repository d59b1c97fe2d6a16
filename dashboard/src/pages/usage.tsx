import { useEffect, useMemo, useState } from 'preact/hooks';
import { about, get, query, type Json } from '../api';
import { Chart, everyStep } from '../chart';
import { Badge, Card, Empty, Failure, Loading, Page, Segments, useLoad, useStore } from '../controls';
import { bytes, count, ms, percent } from '../format';
import { Icon } from '../icons';
import { setQuery, usePlace } from '../router';

const GROUPS = ['api', 'route', 'consumer', 'key', 'plan', 'status'];
const STEPS: Record<string, string> = { '-1h': 'minute', '-24h': 'minute', '-7d': 'hour', '-30d': 'day', '-365d': 'day' };
const LENGTHS: Record<string, number> = { minute: 60, hour: 3600, day: 86400 };

export function Usage() {
  const place = usePlace();
  const enabled = useStore(about)?.usage;
  const from = place.query.get('from') ?? '-24h';
  const group = place.query.get('group') ?? 'consumer';
  const filter = Object.fromEntries(GROUPS.map((name) => [name, place.query.get(name) ?? '']));
  const [typed, setTyped] = useState(filter);
  const set = (changed: Record<string, string>) => setQuery({ from, group, ...filter, ...changed });
  const step = STEPS[from] ?? 'day';
  const tablePath = '/weir/v1/usage' + query({ from, ...filter, group_by: group, limit: 200 });
  const linePath = '/weir/v1/usage' + query({ from, ...filter, step, limit: 10000 });
  const table = useLoad(() => get(tablePath), [tablePath]);
  const line = useLoad(() => get(linePath), [linePath]);
  const shown = useMemo(() => everyStep(line.data, LENGTHS[step]!), [line.data]);
  const { times, column, rate } = shown;
  // What is called now comes into the sums within a second.
  useEffect(() => {
    if (!enabled) return;
    const timer = setInterval(() => { table.reload(); line.reload(); }, 10_000);
    return () => clearInterval(timer);
  }, [enabled]);
  if (enabled === false) {
    return (
      <Page title="Usage"><Card><Empty icon="usage" title="Usage is not recorded">Set <code>usage.enabled: true</code> in the settings, or start with <code>--set usage.enabled=true</code>: then the gateway keeps who has called what, for years.</Empty></Card></Page>
    );
  }
  return (
    <Page title="Usage" hint="Who has called what, how often, how fast and with how many bytes."
      actions={<>
        <Segments label="Time range" value={from} onChange={(id) => set({ from: id })} options={[{ id: '-1h', label: '1h' }, { id: '-24h', label: '24h' }, { id: '-7d', label: '7d' }, { id: '-30d', label: '30d' }, { id: '-365d', label: '1y' }]} />
        <a class="button" download={`usage-by-${group}.csv`} href={'/weir/v1/usage' + query({ from, ...filter, group_by: group, limit: 10000, format: 'csv' })}><Icon name="export" size={16} />CSV</a>
      </>}>
      <Card class="flush">
        <form class="toolbar filters" onSubmit={(event) => { event.preventDefault(); set(typed); }}>
          <label>Rows<select class="input" value={group} onChange={(event) => set({ group: event.currentTarget.value })}>{GROUPS.map((one) => <option key={one}>{one}</option>)}<option value="consumer,api">consumer and api</option></select></label>
          {GROUPS.map((name) => <label key={name}>only {name}<input class="input" placeholder="all" spellcheck={false} value={typed[name]} onInput={(event) => setTyped({ ...typed, [name]: event.currentTarget.value })} onBlur={() => set(typed)} /></label>)}
          <button class="sr" type="submit" tabIndex={-1} aria-hidden="true">Filter</button>
        </form>
      </Card>
      {(table.error || line.error) && <Failure error={(table.error ?? line.error)!} />}
      {line.data && !shown.empty && (
        <div class="grid two">
          <Card title="Requests a second">
            <Chart label="Requests a second" sync="usage" times={times} range={shown.range} data={[rate('requests'), rate('client_errors'), rate('server_errors')]}
              curves={[{ label: 'all', colour: 'accent', fill: true }, { label: '4xx', colour: 'warn' }, { label: '5xx', colour: 'bad' }]} format={count} floor={0.01} />
          </Card>
          <Card title="Latency">
            <Chart label="Latency" sync="usage" times={times} range={shown.range} data={[column('p50_ms'), column('p95_ms'), column('p99_ms')]}
              curves={[{ label: 'p50', colour: 'accent' }, { label: 'p95', colour: 'violet' }, { label: 'p99', colour: 'warn' }]} format={ms} floor={0.01} />
          </Card>
        </div>
      )}
      {table.data ? <UsageTable rows={table.data.rows} columns={group.split(',')} more={table.data.more} /> : !table.error && <Loading />}
    </Page>
  );
}

function UsageTable({ rows, columns, more }: { rows: Json[]; columns: string[]; more?: boolean }) {
  const total = rows.reduce((sum, row) => sum + row.requests, 0);
  if (!rows.length) return <Card><Empty icon="usage" title="No request in this time" /></Card>;
  return (
    <Card class="flush">
      <div class="scroll" tabIndex={0} role="region" aria-label="Table">
        <table>
          <thead><tr>{columns.map((name) => <th key={name}>{name}</th>)}<th class="num">Requests</th><th class="num">Share</th><th class="num">4xx</th><th class="num">5xx</th><th class="num">Received</th><th class="num">Sent</th><th class="num">Mean</th><th class="num">p50</th><th class="num">p95</th><th class="num">p99</th></tr></thead>
          <tbody>
            {rows.map((row, at) => (
              <tr key={at}>
                {columns.map((name) => <td key={name}>{row[name] || <span class="faint">{name === 'consumer' ? 'nobody' : 'none'}</span>}</td>)}
                <td class="num">{count(row.requests)}</td>
                <td class="num"><meter class="bar" min={0} max={1} value={row.requests / total} aria-label="share" />{percent(row.requests / total)}</td>
                <td class="num">{row.client_errors ? <Badge tone="warn">{count(row.client_errors)}</Badge> : 0}</td>
                <td class="num">{row.server_errors ? <Badge tone="bad">{count(row.server_errors)}</Badge> : 0}</td>
                <td class="num">{bytes(row.bytes_received)}</td><td class="num">{bytes(row.bytes_sent)}</td>
                <td class="num">{ms(row.latency_ms)}</td><td class="num">{ms(row.p50_ms)}</td><td class="num">{ms(row.p95_ms)}</td><td class="num">{ms(row.p99_ms)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {more && <p class="hint padded">There are more; the CSV has up to 10,000.</p>}
    </Card>
  );
}
