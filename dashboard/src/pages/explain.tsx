import { useState } from 'preact/hooks';
import { ApiError, get, type Json } from '../api';
import { asApiError, Badge, Button, Card, Chips, Empty, Failure, Field, Notice, Page } from '../controls';
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
  const ask = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    setQuery({ method, url, fields, remote });
    const asked = new URLSearchParams({ request: `${method} ${url}` });
    fields.split('\n').map((line) => line.trim()).filter(Boolean).forEach((line) => asked.append('header', line));
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
    <Page title="Explain" hint="Which route takes a request, which do not and why, and what runs in which order. Nothing is sent.">
      <Card class="padded">
        <form class="explain-form" onSubmit={ask}>
          <div class="pair">
            <select class="input short" aria-label="Method" value={method} onChange={(event) => setMethod(event.currentTarget.value)}>{METHODS.map((one) => <option key={one}>{one}</option>)}</select>
            <input class="input" aria-label="URL or path" placeholder="http://example.com/orders/7 or a path" spellcheck={false} value={url} onInput={(event) => setUrl(event.currentTarget.value)} />
            <Button type="submit" tone="primary" busy={busy}>Explain</Button>
          </div>
          <div class="grid two">
            <Field label="Fields" hint="one a line: apikey: k1">
              {(id, about) => <textarea id={id} aria-describedby={about} class="input mono" rows={2} spellcheck={false} value={fields} onInput={(event) => setFields(event.currentTarget.value)} />}
            </Field>
            <Field label="Client's address" hint="127.0.0.1 unless told">
              {(id, about) => <input id={id} aria-describedby={about} class="input" spellcheck={false} value={remote} onInput={(event) => setRemote(event.currentTarget.value)} />}
            </Field>
          </div>
        </form>
      </Card>
      {error && <Failure error={error} />}
      {found && <Explanation found={found} />}
    </Page>
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
