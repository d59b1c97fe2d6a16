//! The zone that a configuration names, in memory or on a disk.

use std::path::Path;
use std::sync::Arc;

use weir_plugin::{BuildCx, Invalid};

use super::conf::{Conf, Strategy};
use crate::cache::disk::Disk;
use crate::cache::zone::Zone;

/// Room of a zone for which `plugin_metadata` has no size: that of APISIX's `memory_cache`.
const ZONE_BYTES: usize = 50 << 20;

/// The zone of a configuration.
pub(super) fn zone(conf: &Conf, bytes: Option<usize>, build: &BuildCx<'_>) -> Result<Arc<Zone>, Invalid> {
    let name = &conf.cache_zone;
    let set = build.cache_zones.iter().find(|zone| zone.name == *name);
    let bytes = bytes.or(set.map(|zone| zone.memory_size.as_usize())).unwrap_or(ZONE_BYTES);
    let is_disk = conf.cache_strategy == Strategy::Disk;
    let Some(set) = set.filter(|zone| is_disk && !zone.disk_path.is_empty()) else {
        if is_disk {
            build
                .warn("cache_zone", format!("the zone {name} has no folder (cache_zones): answers are kept in memory"));
        }
        return Ok(build.states.get_or_create(&format!("cache zone {name} {bytes}"), || Zone::new(bytes)));
    };
    let most = set.disk_size.as_usize();
    let mut failed = None;
    let place = format!("cache zone {name} {bytes} {most} {}", set.disk_path);
    let zone = build.states.get_or_create(&place, || match Disk::open(Path::new(&set.disk_path), bytes) {
        Ok(disk) => Zone::on_disk(bytes, most, disk),
        Err(error) => {
            failed = Some(error);
            Zone::new(bytes)
        }
    });
    match failed {
        None => Ok(zone),
        Some(error) => {
            let text = format!("the folder {} of the zone {name} (cache_zones) cannot be used: {error}", set.disk_path);
            Err(Invalid::new("cache_zone", text))
        }
    }
}
