import { useEffect, useRef, useState } from 'preact/hooks';
import { query, stream, type Json } from '../api';
import { Button, Card, Empty, Page, Status } from '../controls';
import { bytes, clock, ms } from '../format';
import { href, resourceHref, setQuery, usePlace } from '../router';

const KEPT = 300;
const FILTERS = ['status', 'method', 'route', 'consumer', 'host', 'path', 'slower_ms'] as const;
const LABELS: Record<string, string> = { status: 'Status', method: 'Method', route: 'Route', consumer: 'Consumer', host: 'Host has', path: 'Path has', slower_ms: 'Slower than (ms)' };
const SAMPLES: Record<string, string> = { status: '5xx', method: 'GET', route: 'id', consumer: 'name', host: 'example', path: '/orders', slower_ms: '100' };

export function Tail() {
  const place = usePlace();
  const filter = Object.fromEntries(FILTERS.map((name) => [name, place.query.get(name) ?? '']));
  const [typed, setTyped] = useState(filter);
  const [rows, setRows] = useState<Json[]>([]);
  const [more, setMore] = useState(0);
  const [open, setOpen] = useState(false);
  const [paused, setPaused] = useState(false);
  const [chosen, setChosen] = useState<Json>(null);
  const held = useRef(false);
  held.current = paused;
  const path = '/weir/v1/requests' + query(filter);
  useEffect(() => {
    setRows([]);
    setMore(0);
    return stream(path, {
      requests: (data) => {
        if (held.current) return;
        setRows((before) => [...data.requests.reverse(), ...before].slice(0, KEPT));
        setMore((before) => before + data.more);
      },
    }, setOpen);
  }, [path]);
  const apply = (event?: Event) => {
    event?.preventDefault();
    setQuery(typed);
  };
  return (
    <Page title="Live requests" hint="Requests as they end: of many a sample, without queries and fields, which may hold secrets."
      actions={<>
        <span class={`dot ${open ? (paused ? 'warn' : 'good') : 'bad'}`}>{open ? (paused ? 'paused' : 'live') : 'not connected'}</span>
        <Button icon={paused ? 'play' : 'pause'} onClick={() => setPaused(!paused)}>{paused ? 'Go on' : 'Pause'}</Button>
        <Button onClick={() => setRows([])}>Clear</Button>
      </>}>
      <Card class="flush">
        <form class="toolbar filters" onSubmit={apply}>
          {FILTERS.map((name) => (
            <label key={name}>{LABELS[name]}<input class="input" placeholder={SAMPLES[name]} value={typed[name]} spellcheck={false} onInput={(event) => setTyped({ ...typed, [name]: event.currentTarget.value })} onBlur={() => apply()} /></label>
          ))}
          <Button type="submit">Filter</Button>
        </form>
        {rows.length ? (
          <div class="scroll" tabIndex={0} role="region" aria-label="Table">
            <table class="dense">
              <thead><tr><th>Time</th><th>Status</th><th>Request</th><th>Route</th><th>Consumer</th><th>Client</th><th class="num">Whole</th><th class="num">Upstream</th><th class="num">Sent</th></tr></thead>
              <tbody>
                {rows.map((row, at) => (
                  <tr key={`${row.time} ${rows.length - at}`} class={chosen === row ? 'chosen' : ''} onClick={() => setChosen(chosen === row ? null : row)}>
                    <td><button type="button" class="plain-button mono" aria-expanded={chosen === row} onClick={(event) => { event.stopPropagation(); setChosen(chosen === row ? null : row); }}>{clock(row.time)}</button></td>
                    <td><Status code={row.status} /></td>
                    <td class="mono cut"><b>{row.method}</b> <span class="faint">{row.host}</span>{row.path}</td>
                    <td>{row.route ? <a href={resourceHref(`routes/${row.route}`)}>{row.route}</a> : <span class="faint">none</span>}</td>
                    <td>{row.consumer ? <a href={resourceHref(`consumers/${row.consumer}`)}>{row.consumer}</a> : <span class="faint">–</span>}</td>
                    <td class="mono">{row.client}</td>
                    <td class="num"><Phases row={row} />{ms(row.ms)}</td>
                    <td class="num">{ms(row.upstream_ms)}</td>
                    <td class="num">{bytes(row.sent)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        ) : <Empty icon="tail" title={open ? 'Waiting for requests' : 'Connecting'}>{Object.values(filter).some(Boolean) && 'Only those that fit the filters are shown.'}</Empty>}
        {more > 0 && <p class="hint padded">{more.toLocaleString('en')} more fitted and were not shown.</p>}
      </Card>
      {chosen && (
        <Card title="Request" actions={<a href={href(['explain'], { method: chosen.method, url: `http://${chosen.host}${chosen.path}` })}>Explain it</a>}>
          <dl class="facts">
            {Object.entries(chosen).map(([name, value]) => <div key={name}><dt>{name.replace(/_/g, ' ')}</dt><dd>{name === 'time' ? clock(Number(value)) : String(value ?? '–') || '–'}</dd></div>)}
          </dl>
        </Card>
      )}
    </Page>
  );
}

/** The shares of the gateway and the upstream in a request's time. */
function Phases({ row }: { row: Json }) {
  if (row.upstream_ms === null || !row.ms) return null;
  return <meter class="phases" min={0} max={row.ms} value={row.upstream_ms} aria-label={`upstream ${ms(row.upstream_ms)} of ${ms(row.ms)}`} />;
}
