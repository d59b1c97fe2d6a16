//! Plugins that log and count.

pub(crate) mod batch;
pub(crate) mod body;
pub(crate) mod clickhouse_logger;
pub(crate) mod collectors;
pub(crate) mod datadog;
pub(crate) mod elasticsearch_logger;
pub(crate) mod entry;
mod entry_conf;
pub(crate) mod error_log_logger;
pub(crate) mod file_logger;
pub(crate) mod google_cloud_logging;
pub(crate) mod http_logger;
pub(crate) mod json;
pub(crate) mod kafka_logger;
pub(crate) mod lago;
pub(crate) mod log_rotate;
mod logging;
pub(crate) mod loggly;
pub(crate) mod loki_logger;
pub(crate) mod node_status;
pub(crate) mod opentelemetry;
pub(crate) mod prometheus;
pub(crate) mod rocketmq_logger;
pub(crate) mod server_info;
pub(crate) mod skywalking;
pub(crate) mod skywalking_logger;
pub(crate) mod sls_logger;
pub(crate) mod splunk_hec_logging;
pub(crate) mod stamp;
pub(crate) mod syslog;
pub(crate) mod syslog_message;
pub(crate) mod tcp_logger;
pub(crate) mod tencent_cloud_cls;
mod time_pattern;
pub(crate) mod trace;
pub(crate) mod udp_logger;
pub(crate) mod zipkin;

use std::sync::Arc;

use weir_plugin::BuildCx;
use weir_telemetry::reports::{Channel, ChannelOptions};

/// The channel with these options: the same for all places that have the same, before a change and after it.
pub(crate) fn channel(options: ChannelOptions, cx: &BuildCx<'_>) -> Arc<Channel> {
    let key = format!("reports {options:?}");
    cx.states.get_or_create(&key, || Channel::open(options))
}
