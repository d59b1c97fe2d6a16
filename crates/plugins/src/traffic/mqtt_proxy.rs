//! `mqtt-proxy`: lets connections of MQTT through, with the client's id for balancers.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Failure, Flow, Phases, Plugin, RequestCx, Side};
use weir_wire::mqtt;

/// The definition.
#[derive(Debug)]
pub(crate) struct MqttProxy;

/// On a stream route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Name of the protocol in the client's CONNECT: `MQTT`, or `MQIsdp` in version 3.1.
    #[schemars(length(min = 1, max = 64))]
    protocol_name: String,
    /// Level of the protocol: 4 for the versions 3.1.1, 5 for version 5.
    #[schemars(range(min = 0, max = 255))]
    protocol_level: u8,
}

impl Define for MqttProxy {
    const NAME: &'static str = "mqtt-proxy";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::ACCESS;
    const STREAMS: bool = true;
    const REQUESTS: bool = false;
    const DOC: &'static str = "\
Runs on [stream routes](../stream-routes.md) alone, for brokers of MQTT. The first packet of a connection has to be a CONNECT \
with the name and level of the protocol that are configured; any other connection is closed, with status 400 in metrics and \
logs. The packet goes on to the broker as it is.

With `type: chash` and `key: mqtt_client_id` of the upstream, a client comes back to the broker that has its session: the \
hash is of the id in its CONNECT. A client without an id, to which the broker gives one, is balanced by its address.

What comes before the id may be up to 64 KiB long (properties of version 5), and has to arrive within `timeouts.handshake`.";
    const EXAMPLE: &'static str = "\
protocol_name: MQTT
protocol_level: 5
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Mqtt { protocol: conf.protocol_name.into_bytes(), level: conf.protocol_level }))
    }
}

/// An instance.
#[derive(Debug)]
struct Mqtt {
    protocol: Vec<u8>,
    level: u8,
}

/// The client speaks something else.
const fn refused(reason: &'static str) -> Flow {
    Flow::Abort(Failure { status: 400, side: Side::Client, reason })
}

impl Plugin for Mqtt {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(first) = cx.first_bytes() else { return Flow::Abort(Failure::internal("mqtt-proxy needs a stream")) };
        let connect = match mqtt::parse(first) {
            Ok(None) => return Flow::AwaitBody,
            Ok(Some(connect)) => connect,
            Err(mqtt::Malformed(reason)) => return refused(reason),
        };
        if connect.protocol != self.protocol {
            return refused("another name of the protocol is expected");
        }
        if connect.level != self.level {
            return refused("another level of the protocol is expected");
        }
        let id: Box<[u8]> = connect.client_id.into();
        cx.set_mqtt_client_id(id);
        Flow::Continue
    }
}
