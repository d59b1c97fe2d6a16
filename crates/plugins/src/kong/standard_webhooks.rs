//! Kong's `standard-webhooks`: requests that a sender has signed as the Standard Webhooks specification says.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};

use super::body;

/// The definition.
#[derive(Debug)]
pub(crate) struct StandardWebhooks;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The secret that requests are signed with: a text, or base64 after `whsec_`.
    #[schemars(length(min = 1))]
    secret_v1: String,
    /// Most seconds between the time of a request and now.
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 0))]
    tolerance_second: f64,
}

fn five_minutes() -> f64 {
    300.0
}

impl Define for StandardWebhooks {
    const NAME: &'static str = "standard-webhooks";
    const PRIORITY: i32 = 760;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Lets a request through whose body its sender has signed.";
    const EXAMPLE: &'static str = "secret_v1: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";
    const ENCRYPTED: &'static [&'static str] = &["secret_v1"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let secret = match conf.secret_v1.strip_prefix("whsec_") {
            Some(encoded) => {
                STANDARD.decode(encoded).map_err(|_| Invalid::new("secret_v1", "expected base64 after whsec_"))
            }
            None => Ok(conf.secret_v1.into_bytes()),
        };
        let secret = cx.ok(secret)?;
        Some(Compiled::ready(Verified {
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            tolerance: conf.tolerance_second as u64,
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Verified {
    key: hmac::Key,
    tolerance: u64,
}

impl Plugin for Verified {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        // A body is not asked for by a request that cannot be good.
        if self.signed(cx).is_none() {
            return body::error(cx, 400, "Bad request", &[]);
        }
        if cx.body().is_none() {
            return Flow::AwaitBody;
        }
        let mut room = cx.take_scratch();
        let is_good = self.is_good(cx, &mut room);
        cx.put_scratch(room);
        if is_good { Flow::Continue } else { body::error(cx, 400, "Bad request", &[]) }
    }
}

impl Verified {
    /// Id, time and signatures of a request whose time is near enough.
    fn signed<'c>(&self, cx: &'c RequestCx<'_>) -> Option<(&'c [u8], &'c [u8], &'c [u8])> {
        let field = |name: &str| cx.request().field_str(name).filter(|value| !value.is_empty());
        let (id, time, signatures) = (field("webhook-id")?, field("webhook-timestamp")?, field("webhook-signature")?);
        let seconds: u64 = std::str::from_utf8(time).ok()?.parse().ok()?;
        (seconds.abs_diff(cx.unix_ms() / 1000) <= self.tolerance).then_some((id, time, signatures))
    }

    fn is_good(&self, cx: &RequestCx<'_>, room: &mut Vec<u8>) -> bool {
        let (Some((id, time, signatures)), Some(body)) = (self.signed(cx), cx.body()) else { return false };
        room.clear();
        for part in [id, b".", time, b".", body] {
            room.extend_from_slice(part);
        }
        // Two bytes that decoding wants to have spare.
        let mut decoded = [0; 32 + 2];
        signatures.split(|b| *b == b' ').filter_map(|signature| signature.strip_prefix(b"v1,")).any(|signature| {
            let length = STANDARD.decode_slice(signature, &mut decoded).unwrap_or(0);
            decoded.get(..length).is_some_and(|signature| hmac::verify(&self.key, room, signature).is_ok())
        })
    }
}
