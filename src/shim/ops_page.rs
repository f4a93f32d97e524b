//! What a shim shows on the page for operators.

use super::backend::{Shim, ShimBackend};
use super::ops::upstreams_now;
use crate::front::Front;
use crate::metrics::Format;
use crate::ops::exposed::samples;
use crate::ops::{Gathered, Source};
use serde_json::{Map, Value, json};
use std::pin::Pin;
use std::sync::Arc;

/// See the module.
pub(super) struct ShimSource {
    pub(super) shim: Arc<Shim>,
    pub(super) front: Arc<Front<ShimBackend>>,
    /// Whether there is a key that can switch.
    pub(super) can_switch: bool,
}

impl Source for ShimSource {
    fn gather(&self) -> Pin<Box<dyn Future<Output = Gathered> + Send + '_>> {
        Box::pin(async {
            self.shim.read_metrics(&self.front);
            let (shim, can_switch) = (self.shim.clone(), self.can_switch);
            let gathered: Gathered = Box::new(move || state(&shim, can_switch));
            gathered
        })
    }
}

fn state(shim: &Shim, can_switch: bool) -> Map<String, Value> {
    let text = shim.metrics.encode(Format::Text);
    let text = String::from_utf8_lossy(&text);
    let state = json!({
        "role": "shim",
        "instance": shim.instance_id.to_str().unwrap_or_default(),
        "draining": shim.is_draining(),
        "sla": shim.sla.snapshot(),
        "samples": samples(&text, |_| false),
        "shim": upstreams_now(shim),
        "can_switch": can_switch,
    });
    match state {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}
