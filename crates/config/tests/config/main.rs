//! Black-box tests of the configuration model.

mod changes;
mod checks;
mod config_yaml;
mod environment;
mod front_end;
mod limits;
mod node;
mod oddities;
mod reference;
mod references;
mod scale;
mod secrets;
mod settings;
mod support;
