//! `node-status`: connections and requests in numbers, as an API.

use weir_plugin::{CompileCx, Compiled, Define, Phases};

use crate::name_alone::{Conf, nothing};

/// The definition.
#[derive(Debug)]
pub(crate) struct NodeStatus;

impl Define for NodeStatus {
    const NAME: &'static str = "node-status";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::NONE;
    const DOC: &'static str = "\
Offers an API, `GET /apisix/status`, with connections and requests in numbers as nginx counts them; `id` is that of the \
process. Clients reach it through a route with [public-api](public-api.md). The plugin does nothing on a route of its own.

```json
{\"id\":\"…\",\"status\":{\"active\":\"1\",\"accepted\":\"1\",\"handled\":\"1\",\"total\":\"1\",\"reading\":\"0\",\"writing\":\"1\",\"waiting\":\"0\"}}
```";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(nothing())
    }
}
