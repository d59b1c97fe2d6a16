//! Kong's `file-log`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases};
use weir_telemetry::reports::{ChannelOptions, Destination, Frame};

use super::log::Logger;
use super::log::queue::at_once;
use super::tcp_log::no_lua;
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
        cx.say(no_lua(conf.custom_fields_by_lua.as_ref()));
        Some(Compiled::build(move |build| {
            let to = Destination::File { path: PathBuf::from(&conf.path), mode: 0o600 };
            let options = ChannelOptions { name: conf.path, ..at_once(Self::NAME, to, Frame::LineEnds) };
            Ok(Logger(observe::channel(options, build)))
        }))
    }
}
