//! Kong's `file-log`.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases};
use weir_telemetry::reports::{ChannelOptions, Destination, Frame};

use super::log::Logger;
use crate::observe;

/// The definition.
#[derive(Debug)]
pub(crate) struct FileLog;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The file.
    #[schemars(length(min = 1))]
    path: String,
    /// Opens the file for each entry; one that was moved away is made anew in any case.
    #[serde(default, rename = "reopen")]
    _reopen: bool,
    /// Fields made by Lua; not supported.
    custom_fields_by_lua: Option<serde_json::Value>,
}

impl Define for FileLog {
    const NAME: &'static str = "file-log";
    const PRIORITY: i32 = 9;
    const PHASES: Phases = Phases::LOG;
    const DOC: &'static str = "Appends an entry about each exchange to a file.";
    const EXAMPLE: &'static str = "path: /tmp/kong.log\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.custom_fields_by_lua.is_some() {
            cx.say([Invalid::new("custom_fields_by_lua", "Lua is not supported yet")]);
        }
        Some(Compiled::build(move |build| {
            let options = ChannelOptions {
                plugin: Self::NAME,
                name: conf.path.clone(),
                destination: Destination::File { path: PathBuf::from(conf.path), mode: 0o600 },
                frame: Frame::LineEnds,
                batch_records: 10_000,
                batch_age: Duration::ZERO,
                batch_idle: Duration::ZERO,
                max_pending: None,
                retries: 0,
                retry_delay: Duration::ZERO,
            };
            Ok(Logger(observe::channel(options, build)))
        }))
    }
}
