//! Kong's `correlation-id`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

/// The definition.
#[derive(Debug)]
pub(crate) struct CorrelationId;

/// Form of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum Generator {
    /// A UUID for each request.
    #[serde(rename = "uuid")]
    Uuid,
    /// A UUID and a number.
    #[serde(rename = "uuid#counter")]
    Counter,
    /// Addresses, numbers and the time.
    #[serde(rename = "tracker")]
    Tracker,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Name of the field.
    header_name: String,
    /// Form of the id.
    generator: Generator,
    /// Tells the client the id.
    echo_downstream: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self { header_name: "Kong-Request-ID".into(), generator: Generator::Counter, echo_downstream: false }
    }
}

impl Define for CorrelationId {
    const NAME: &'static str = "correlation-id";
    const PRIORITY: i32 = 100_001;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Gives each request an id, unless the client has given one.";
    const EXAMPLE: &'static str = "header_name: X-Request-ID\ngenerator: uuid\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let name = FieldName::new(&conf.header_name);
        let name = cx.ok(name.ok_or_else(|| Invalid::new("header_name", "expected the name of a header")))?;
        let (name, generator, echo) = (name, conf.generator, conf.echo_downstream);
        Some(Compiled::ready(Ids { name, generator, echo, first: uuid(), count: AtomicU64::new(0) }))
    }
}

/// A random UUID (RFC 9562 section 5.4).
pub(super) fn uuid() -> String {
    let bits = rand::random::<u128>() & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let digits = format!("{bits:032x}");
    let mut text = String::with_capacity(36);
    for (at, digit) in digits.chars().enumerate() {
        if matches!(at, 8 | 12 | 16 | 20) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}

/// An instance.
#[derive(Debug)]
struct Ids {
    name: FieldName,
    generator: Generator,
    echo: bool,
    /// The UUID before the numbers.
    first: String,
    count: AtomicU64,
}

impl Plugin for Ids {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut text = cx.take_scratch();
        text.extend_from_slice(cx.request().field(&self.name).unwrap_or_default());
        if text.is_empty() {
            self.write(cx, &mut text);
            cx.request_mut().set_field(&self.name, &text);
        }
        if self.echo {
            cx.set_response_field(&self.name, |out| out.extend_from_slice(&text));
        }
        cx.put_scratch(text);
        Flow::Continue
    }
}

impl Ids {
    fn write(&self, cx: &RequestCx<'_>, out: &mut Vec<u8>) {
        match self.generator {
            Generator::Uuid => out.extend_from_slice(uuid().as_bytes()),
            Generator::Counter => {
                out.extend_from_slice(self.first.as_bytes());
                out.push(b'#');
                weir_wire::push_number(out, self.count.fetch_add(1, Relaxed) + 1);
            }
            Generator::Tracker => {
                let client = cx.client();
                let (local, ms) = (client.local, cx.unix_ms());
                let mut text = String::new();
                let _ = write!(
                    text,
                    "{}-{}-{}-{}-{}-{}.{:03}",
                    local.ip(),
                    local.port(),
                    std::process::id(),
                    client.connection,
                    client.requests,
                    ms / 1000,
                    ms % 1000
                );
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
}
