//! `request-id`: every request has an id, the client's or a new one.

pub(crate) mod algorithm;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Phases, Plugin, RequestCx, ResponseCx};
use weir_wire::name::FieldName;

use crate::fields::editable;
use algorithm::{Algorithm, MOST_LENGTH};

/// The definition.
#[derive(Debug)]
pub(crate) struct RequestId;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Name of the field that carries the id. One that the client sent, and that is not empty, is kept.
    header_name: String,
    /// Tells the client the id under the same name, unless the answer has one there already.
    include_in_response: bool,
    /// The algorithm that makes ids.
    algorithm: AlgorithmName,
    /// For the algorithm `range_id`.
    range_id: RangeConf,
}

/// The algorithm that makes ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AlgorithmName {
    /// A random UUID (RFC 9562 section 5.4).
    Uuid,
    /// 21 random letters, digits, `_` and `-`.
    Nanoid,
    /// Random characters as `range_id` says.
    RangeId,
    /// The second and 128 random bits, as 27 letters and digits in the order of time.
    Ksuid,
    /// A UUID of the millisecond and 74 random bits, in the order of time (RFC 9562 section 5.7).
    Uuidv7,
}

/// For the algorithm `range_id`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RangeConf {
    /// The number of characters of an id.
    #[schemars(range(min = 6, max = MOST_LENGTH))]
    length: u16,
    /// The characters it is made of, in ASCII; one that is written twice comes twice as often.
    #[schemars(length(min = 6, max = 256), regex(pattern = "^[!-~]*$"))]
    char_set: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            header_name: "X-Request-Id".into(),
            include_in_response: true,
            algorithm: AlgorithmName::Uuid,
            range_id: RangeConf::default(),
        }
    }
}

impl Default for RangeConf {
    fn default() -> Self {
        // APISIX's own set, in which G and K stand twice, and J not at all.
        let char_set = "abcdefghijklmnopqrstuvwxyzABCDEFGHIGKLMNOPQRSTUVWXYZ0123456789";
        Self { length: 16, char_set: char_set.into() }
    }
}

impl Define for RequestId {
    const NAME: &'static str = "request-id";
    const PRIORITY: i32 = 12015;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE);
    const DOC: &'static str = "\
Gives every request an id that upstream, client and logs share. One that the client sent is kept; otherwise a new one is \
made. The upstream receives it in a field, the client too, and `$request_id` is it from here on, in the access log as in \
every template.

Ids are made from a cryptographic generator that each worker seeds from the system: none can be guessed from others, and no \
two workers make the same.";
    const EXAMPLE: &'static str = "\
header_name: X-Request-Id
algorithm: uuidv7
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let name = cx.ok(editable("header_name", &conf.header_name))?;
        let algorithm = match conf.algorithm {
            AlgorithmName::Uuid => Algorithm::Uuid,
            AlgorithmName::Nanoid => Algorithm::Nanoid,
            AlgorithmName::Ksuid => Algorithm::Ksuid,
            AlgorithmName::Uuidv7 => Algorithm::Uuidv7,
            AlgorithmName::RangeId => Algorithm::range(&conf.range_id.char_set, conf.range_id.length),
        };
        Some(Compiled::ready(Identifying { name, algorithm, told: conf.include_in_response }))
    }
}

/// An instance.
#[derive(Debug)]
struct Identifying {
    name: FieldName,
    algorithm: Algorithm,
    told: bool,
}

impl Plugin for Identifying {
    fn phases(&self, declared: Phases) -> Phases {
        if self.told { declared } else { declared.without(Phases::RESPONSE) }
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut id = cx.take_scratch();
        id.extend_from_slice(cx.request().field(&self.name).unwrap_or_default());
        if id.is_empty() {
            self.algorithm.write(cx.unix_ms(), &mut id);
            cx.request_mut().set_field(&self.name, &id);
        }
        cx.set_request_id(&id);
        cx.put_scratch(id);
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let response = cx.response();
        if response.head.fields.get(response.buffer.bytes(), &self.name).is_some_and(|id| !id.is_empty()) {
            return Flow::Continue;
        }
        let mut id = cx.take_scratch();
        // Another plugin may have kept the field from the upstream.
        let sent = cx.request().field(&self.name).filter(|id| !id.is_empty());
        id.extend_from_slice(sent.unwrap_or_else(|| cx.request_id()));
        // Whatever answered before the rewrite phase came here has no id.
        if !id.is_empty() {
            cx.set_field(&self.name, &id);
        }
        cx.put_scratch(id);
        Flow::Continue
    }
}
