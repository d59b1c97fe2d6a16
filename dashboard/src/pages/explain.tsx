import { useState } from 'preact/hooks';
import { ApiError, get, request, session, type Json } from '../api';
import { asApiError, Badge, Button, Card, Chips, Empty, Failure, Field, Notice, Page, Status, useStore } from '../controls';
import { ms } from '../format';
import { Icon } from '../icons';
import { resourceHref, setQuery, usePlace } from '../router';

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'];

export function Explain() {
  const place = usePlace();
  const [method, setMethod] = useState(place.query.get('method') ?? 'GET');
  const [url, setUrl] = useState(place.query.get('url') ?? 'http://localhost/');
  const [fields, setFields] = useState(place.query.get('fields') ?? '');
  const [remote, setRemote] = useState(place.query.get('remote') ?? '');
  const [found, setFound] = useState<Json>(null);
  const [error, setError] = useState<ApiError>();
  const [busy, setBusy] = useState(false);
  const [body, setBody] = useState('');
  const [sent, setSent] = useState<Json>(null);
  const [sending, setSending] = useState(false);
  const maySend = useStore(session)?.role === 'admin';
  const lines = () => fields.split('\n').map((line) => line.trim()).filter(Boolean);
  const send = async () => {
    setSending(true);
    setError(undefined);
    try {
      setSent((await request('POST', '/weir/v1/explain', { request: `${method} ${url}`, headers: lines(), body })).body);
    } catch (fault) {
      setError(asApiError(fault));
      setSent(null);
    } finally {
      setSending(false);
    }
  };
  const ask = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    setQuery({ method, url, fields, remote });
    const asked = new URLSearchParams({ request: `${method} ${url}` });
    lines().forEach((line) => asked.append('header', line));
    if (remote) asked.set('remote', remote);
    try {
      setFound(await get(`/weir/v1/explain?${asked}`));
    } catch (fault) {
      setError(asApiError(fault));
      setFound(null);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Page title="Explain" hint="Which route takes a request, which do not and why, and what runs in which order. Nothing is sent, unless you ask for it.">
      <Card class="padded">
        <form class="explain-form" onSubmit={ask}>
          <div class="pair">
            <select class="input short" aria-label="Method" value={method} onChange={(event) => setMethod(event.currentTarget.value)}>{METHODS.map((one) => <option key={one}>{one}</option>)}</select>
            <input class="input" aria-label="URL or path" placeholder="http://example.com/orders/7 or a path" spellcheck={false} value={url} onInput={(event) => setUrl(event.currentTarget.value)} />
            <Button type="submit" tone="primary" busy={busy}>Explain</Button>
            {maySend && <Button busy={sending} onClick={() => void send()}>Send for real</Button>}
          </div>
          <div class="grid two">
            <Field label="Fields" hint="one a line: apikey: k1">
              {(id, about) => <textarea id={id} aria-describedby={about} class="input mono" rows={2} spellcheck={false} value={fields} onInput={(event) => setFields(event.currentTarget.value)} />}
            </Field>
            <Field label="Client's address" hint="127.0.0.1 unless told">
              {(id, about) => <input id={id} aria-describedby={about} class="input" spellcheck={false} value={remote} onInput={(event) => setRemote(event.currentTarget.value)} />}
            </Field>
            {maySend && (
              <Field label="Body" hint="only for a request that is sent for real">
                {(id, about) => <textarea id={id} aria-describedby={about} class="input mono" rows={2} spellcheck={false} value={body} onInput={(event) => setBody(event.currentTarget.value)} />}
              </Field>
            )}
          </div>
        </form>
      </Card>
      {error && <Failure error={error} />}
      {sent && <Sent sent={sent} />}
      {found && <Explanation found={found} />}
    </Page>
  );
}

/** The answer to a request that was sent, and where its time went. */
function Sent({ sent }: { sent: Json }) {
  if (sent.failed) return <Notice tone="bad" title="The request could not be sent">{sent.failed}</Notice>;
  const { gateway, times } = sent;
  return (
    <Card title="Sent for real" class="padded">
      <p><Status code={sent.status} /> after {ms(times.total_ms)}{gateway?.route && <>, by route <a href={resourceHref(`routes/${gateway.route}`)}>{gateway.route}</a></>}{gateway?.consumer && `, as ${gateway.consumer}`}{gateway?.node && `, from ${gateway.node}`}</p>
      {gateway ? (
        <table class="plain" aria-label="Phases">
          <thead><tr><th>In the gateway</th><th class="num">Time</th><th><span class="sr">Share</span></th></tr></thead>
          <tbody>
            {gateway.phases.map((phase: Json) => (
              <tr key={phase.name}><td>{phase.name}</td><td class="num">{ms(phase.ms)}</td><td><meter class="phases" min={0} max={gateway.ms || 1} value={phase.ms} aria-label={`${phase.name}: ${ms(phase.ms)} of ${ms(gateway.ms)}`} /></td></tr>
            ))}
          </tbody>
        </table>
      ) : <p class="hint">The phases within the gateway are not known: its samples were full, or figures are off.</p>}
      <p class="hint">For the client: connected after {ms(times.connect_ms)}, head of the answer after {ms(times.head_ms)}, its end after {ms(times.total_ms)}.</p>
      <details>
        <summary>{sent.fields.length} fields, body of {sent.body_bytes ?? 'more than 1048576'} bytes</summary>
        <dl class="facts">{sent.fields.map(([name, value]: [string, string], at: number) => <div key={at}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
        {sent.body && <pre class="code" tabIndex={0}>{sent.body}</pre>}
      </details>
    </Card>
  );
}

function Explanation({ found }: { found: Json }) {
  if (found.refused) return <Notice tone="bad" title={`Answered ${found.refused.status}`}>{found.refused.reason}</Notice>;
  const chosen = found.candidates.find((one: Json) => one.chosen);
  const others = found.candidates.filter((one: Json) => !one.chosen);
  return (
    <>
      <ol class="way">
        <li>
          <h2>Path</h2>
          <p>matched as <code>{found.matched_as}</code></p>
          {found.ambiguity && <Notice tone="bad">Answered 400: other servers read this path as {found.ambiguity.path || 'something else'}, which is {found.ambiguity.route ? <>of route {found.ambiguity.route}</> : 'of no route'}.</Notice>}
        </li>
        <li class={chosen ? 'good' : 'bad'}>
          <h2>Route</h2>
          {chosen ? <p><a href={resourceHref(`routes/${chosen.id}`)}>{chosen.id}</a>{chosen.name && ` “${chosen.name}”`}, by <code>{chosen.pattern}</code></p> : <p>None: answered 404.</p>}
          {others.length > 0 && (
            <details open={!chosen}>
              <summary>{others.length} not taken</summary>
              <table class="plain"><tbody>{others.map((one: Json) => <tr key={one.id + one.pattern}><td><a href={resourceHref(`routes/${one.id}`)}>{one.id}</a></td><td><code>{one.pattern}</code></td><td>{one.reason}</td></tr>)}</tbody></table>
            </details>
          )}
        </li>
        {chosen && (
          <li>
            <h2>Plugins</h2>
            {found.plugins.length ? (
              <div class="scroll" tabIndex={0} role="region" aria-label="Table"><table class="plain">
                <thead><tr><th>In this order</th><th>Phases</th><th class="num">Priority</th></tr></thead>
                <tbody>
                  {found.plugins.map((plugin: Json) => (
                    <tr key={plugin.name + plugin.global}>
                      <td><strong>{plugin.name}</strong> {plugin.global && <Badge>global</Badge>} {plugin.filtered && <Badge tone="accent">filtered</Badge>} {plugin.unresolved && <Badge tone="bad">a reference has no value: 503</Badge>}</td>
                      <td><Chips items={plugin.phases} most={8} /></td><td class="num">{plugin.priority}</td>
                    </tr>
                  ))}
                </tbody>
              </table></div>
            ) : <p class="hint">No plugin.</p>}
          </li>
        )}
        {found.choice ? (
          <li>
            <h2>Upstream</h2>
            <p>chosen by <strong>{found.choice.plugin}</strong></p>
            {found.choice.shares.map((share: Json, at: number) => <div key={at}><Badge tone="accent">weight {share.weight}</Badge> {share.upstream ? <Upstream upstream={share.upstream} target={found.upstream_target} /> : 'none: answered 503'}</div>)}
          </li>
        ) : chosen && (
          <li class={found.upstream ? 'good' : ''}>
            <h2>Upstream</h2>
            {found.upstream ? <Upstream upstream={found.upstream} target={found.upstream_target} /> : <p>None: a plugin has to answer, else 503.</p>}
          </li>
        )}
      </ol>
      {!found.candidates.length && <Empty icon="routes" title="The path of no route takes it" />}
    </>
  );
}

function Upstream({ upstream, target }: { upstream: Json; target: string }) {
  const rows: [string, Json][] = [
    ['Nodes', upstream.nodes.length ? <Chips items={upstream.nodes} most={10} /> : 'none: answered 503'],
    ['Balancer', upstream.balancer ? `${upstream.balancer}${upstream.node ? `: ${upstream.node}` : ''}` : upstream.node ?? '–'],
    ['Target', <code>{target}</code>], ['Host', upstream.host], ['Retries', upstream.retries],
    ['Time limits', `connect ${upstream.timeout.connect} s, send ${upstream.timeout.send} s, read ${upstream.timeout.read} s`],
    ['Checks', upstream.checks ?? 'none'],
  ];
  return <dl class="facts">{rows.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

export { Icon };
