import { useEffect, useRef, useState } from 'preact/hooks';
import { about, get, query, refusal, type Resource } from '../api';
import { Badge, Button, Card, Chips, Empty, Failure, Loading, Page, Pager, Segments, useLoad, useStore } from '../controls';
import { ago } from '../format';
import { Icon } from '../icons';
import { idOf, kindInfo } from '../kinds';
import { href, resourceHref, setQuery, usePlace } from '../router';

const SIZE = 50;

export function List({ kind }: { kind: string }) {
  const info = kindInfo(kind)!;
  const place = usePlace();
  const words = place.query.get('q') ?? '';
  const page = Number(place.query.get('page') ?? '1') || 1;
  const sort = place.query.get('sort') === 'modified' ? 'modified' : 'key';
  const [text, setText] = useState(words);
  const revision = useStore(about)?.revision;
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const search = useRef<HTMLInputElement>(null);
  const path = '/weir/v1/resources' + query({ kind, q: words, page, page_size: SIZE, sort });
  const { data, error, loading } = useLoad(() => get<{ total: number; resources: Resource[] }>(path), [path, revision]);
  const refused = refusal(kind);

  useEffect(() => setText(words), [kind]);
  const keep = (changed: Record<string, string>) =>
    setQuery({ q: words, sort: sort === 'key' ? '' : sort, ...changed });
  const type = (value: string) => {
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => keep({ q: value }), 150);
  };

  return (
    <Page title={info.label} hint={info.hint}
      actions={refused ? <span class="read-only" title={refused}><Icon name="lock" size={15} /> read only</span>
        : <a class="button primary" href={href(['new', kind])}><Icon name="plus" size={16} />New {info.one}</a>}>
      <Card class="flush">
        <div class="toolbar">
          <label class="search">
            <Icon name="search" size={16} />
            <span class="sr">Search in {info.label.toLowerCase()}</span>
            <input ref={search} data-search type="search" placeholder={`Search ${info.label.toLowerCase()} by id or anything in them  ( / )`} value={text} onInput={(event) => type(event.currentTarget.value)} />
          </label>
          <Segments label="Order" value={sort} onChange={(id) => keep({ sort: id === 'key' ? '' : id })} options={[{ id: 'key', label: 'by id' }, { id: 'modified', label: 'latest' }]} />
          <span class="hint" role="status">{data ? `${data.total.toLocaleString('en')} ${data.total === 1 ? info.one : info.label.toLowerCase()}` : ''}</span>
        </div>
        {error && <Failure error={error} />}
        {!data && loading && <Loading />}
        {data && !data.resources.length && (
          <Empty icon={kind} title={words ? `Nothing has “${words}” in it` : `No ${info.one} yet`}>
            {words ? <Button onClick={() => type('')}>Show all</Button> : !refused && <a class="button primary" href={href(['new', kind])}>Create the first one</a>}
          </Empty>
        )}
        {data && data.resources.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Table">
            <table class={loading ? 'stale' : ''}>
              <thead>
                <tr><th>Id</th>{info.columns.map((column) => <th key={column.label}>{column.label}</th>)}<th class="num">Revision</th><th class="num">Changed</th></tr>
              </thead>
              <tbody>
                {data.resources.map((resource) => (
                  <tr key={resource.key}>
                    <td class="id">
                      <a href={resourceHref(resource.key)}>{idOf(resource.key)}</a>
                      {resource.value?.status === 0 && <Badge tone="warn">off</Badge>}
                      {(resource.value?.name || resource.value?.desc) && <div class="hint">{resource.value.name ?? resource.value.desc}</div>}
                    </td>
                    {info.columns.map((column) => <td key={column.label}><Chips items={column.of(resource.value ?? {})} /></td>)}
                    <td class="num">{resource.modified}</td>
                    <td class="num">{ago(resource.value?.update_time)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        {data && <Pager page={page} size={SIZE} total={data.total} onPage={(next) => keep({ page: String(next) })} />}
      </Card>
    </Page>
  );
}
