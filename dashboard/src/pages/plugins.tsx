import { useState } from 'preact/hooks';
import { Badge, Card, Empty, Loading, Markdown, Page, useLoad } from '../controls';
import { Icon } from '../icons';
import { href, usePlace } from '../router';
import { plugins as all } from '../schema';

export function Plugins() {
  const place = usePlace();
  const chosen = place.path[1];
  const [text, setText] = useState('');
  const { data } = useLoad(all, []);
  if (!data) return <Loading />;
  const info = data.find((one) => one.name === chosen);
  if (chosen && info) {
    return (
      <Page title={<><a class="crumb" href={href(['plugins'])}>Plugins</a><span class="crumb-sep">/</span>{info.name}</>} hint={`Priority ${info.priority}${info.auth ? ', authenticates' : ''}${info.streams ? ', for streams' : ''}`}
        actions={info.metadata && <a class="button" href={href(['resource', 'plugin_metadata', info.name])}>Its metadata</a>}>
        <div class="grid two">
          <Card class="padded"><Markdown text={info.doc || 'Not supported yet.'} /></Card>
          {info.example && <Card title="Example"><pre class="code">{info.example}</pre></Card>}
        </div>
        <Card class="padded"><a href={href(['list', 'routes'], { q: `"${info.name}"` })}>Routes with it</a></Card>
      </Page>
    );
  }
  const found = data.filter((one) => (one.name + ' ' + one.doc).toLowerCase().includes(text.toLowerCase()));
  found.sort((a, b) => Number(b.supported) - Number(a.supported) || a.name.localeCompare(b.name));
  return (
    <Page title="Plugins" hint="What can run for a request. Add them to a route, a service, a consumer or a global rule.">
      <Card class="flush"><div class="toolbar"><label class="search"><Icon name="search" size={16} /><span class="sr">Search plugins</span><input data-search type="search" placeholder="Search by name or purpose  ( / )" value={text} onInput={(event) => setText(event.currentTarget.value)} /></label><span class="hint">{found.length}</span></div></Card>
      <div class="catalogue">
        {found.map((one) => (
          <a key={one.name} class={`card plugin-card ${one.supported ? '' : 'off'}`} href={href(['plugins', one.name])}>
            <strong>{one.name}</strong>{one.auth && <Badge tone="accent">authenticates</Badge>}{one.streams && <Badge>streams</Badge>}{!one.supported && <Badge tone="warn">not supported yet</Badge>}
            <span class="hint">{one.doc.split(/(?<=\.)\s/)[0]!.replace(/`/g, '')}</span>
          </a>
        ))}
      </div>
      {!found.length && <Empty icon="plugins" title={`No plugin fits “${text}”`} />}
    </Page>
  );
}
