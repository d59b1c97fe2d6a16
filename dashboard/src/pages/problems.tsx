import { problems, refreshProblems, type Problem } from '../api';
import { Badge, Button, Card, Empty, Failure, Loading, Page, useLoad, useStore } from '../controls';
import { resourceHref } from '../router';

const SORTS: Record<string, string> = {
  certificate: 'Certificates', node: 'Nodes', left_out: 'Left out', withheld: 'Store', refused: 'Refused', limit: 'Limits', version: 'Versions',
};

export function Problems() {
  const { error, reload } = useLoad(refreshProblems, []);
  const data = useStore(problems);
  const found: Problem[] = [...(data?.problems ?? [])].sort((a, b) => Number(b.severity === 'error') - Number(a.severity === 'error'));
  return (
    <Page title="Problems" hint="What needs somebody's attention, and what to do about it." actions={<Button onClick={reload}>Look again</Button>}>
      {error && <Failure error={error} />}
      {!data && !error && <Loading />}
      {data && !found.length && <Card><Empty icon="check" title="Nothing needs attention">Certificates, nodes, resources and limits are all well.</Empty></Card>}
      <div class="stack">
        {found.map((one, at) => (
          <Card key={at} class={`problem ${one.severity}`}>
            <div class="problem-head">
              <Badge tone={one.severity === 'error' ? 'bad' : 'warn'}>{one.severity}</Badge>
              <Badge>{SORTS[one.sort] ?? one.sort}</Badge>
              {one.key && <a href={resourceHref(one.key)}>{one.key}</a>}
            </div>
            <p>{one.text}</p>
            <p class="hint">What to do: {one.hint}.</p>
          </Card>
        ))}
      </div>
    </Page>
  );
}
