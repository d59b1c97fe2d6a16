//! `attach-consumer-label`: labels of the consumer, as fields for the upstream.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use crate::fields::editable;

/// The definition.
#[derive(Debug)]
pub(crate) struct AttachConsumerLabel;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Names of fields, each with `$` and the name of a label, such as `X-Department: $department`.
    #[schemars(length(min = 1))]
    headers: BTreeMap<String, String>,
}

impl Define for AttachConsumerLabel {
    const NAME: &'static str = "attach-consumer-label";
    const PRIORITY: i32 = 2399;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Tells the upstream labels of the consumer, once an authentication plugin has found out who calls.

A field of these names that the client sent is dropped, also where there is no consumer, or one without the label: what \
the upstream reads in it is always what the gateway knows.";
    const EXAMPLE: &'static str = "\
headers:
  X-Department: $department
  X-Company: $company
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.headers.is_empty() {
            cx.say([Invalid::new("headers", "expected one field or more")]);
        }
        let fields = conf.headers.iter().map(|(name, label)| {
            let path = format!("headers.{name}");
            let name = editable(&path, name)?;
            let label = label.strip_prefix('$').filter(|label| !label.is_empty());
            Ok((name, label.ok_or_else(|| Invalid::new(path, "expected $ and the name of a label"))?.into()))
        });
        let fields = cx.ok(fields.collect::<Result<_, Invalid>>())?;
        Some(Compiled::ready(Attaching(fields)))
    }
}

/// An instance: fields, each with the name of a label.
#[derive(Debug)]
struct Attaching(Box<[(FieldName, Box<str>)]>);

impl Plugin for Attaching {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let tables = cx.tables();
        let consumer = tables.as_ref().and_then(|tables| cx.consumer_in(tables));
        for (name, label) in &self.0 {
            let value = consumer.and_then(|consumer| consumer.label(label));
            match value.filter(|value| value.bytes().all(weir_wire::is_field_byte)) {
                Some(value) => cx.request_mut().set_field(name, value.as_bytes()),
                None => {
                    cx.request_mut().remove_field(name);
                }
            }
        }
        Flow::Continue
    }
}
