//! What answers a machine behind its control interface.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A service of the control interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Service {
    /// The names of the machines.
    Dns,
    /// The time.
    Ntp,
}

impl Service {
    pub(super) const NAMES: [(&'static str, Self); 2] = [("ntp", Self::Ntp), ("dns", Self::Dns)];
}

#[cfg(test)]
mod tests {
    use super::super::tests::{means, parse, refused};
    use serde_json::json;

    #[test]
    fn services_as_people_write_them() {
        let yaml = "name: x\ndefaults: {image: /i, services: [ntp, dns, ntp]}\nnodes:\n  a:\n  b: {services: [ntp]}\n  c: {services: []}\n";
        let node = |services: serde_json::Value| {
            let mut node = json!({"image": "/i", "memory": 1 << 30, "cpus": 1, "accel": "auto", "deterministic": false});
            if services != json!([]) {
                node["services"] = services;
            }
            node
        };
        means(yaml, json!({"name": "x", "nodes": {"a": node(json!(["dns", "ntp"])), "b": node(json!(["ntp"])), "c": node(json!([]))}}));
    }

    #[test]
    fn services_that_cannot_be() {
        let node = |keys: &str| format!("name: x\nnodes:\n  a: {{image: /i, {keys}}}\n");
        refused(&node("services: ntp"), "3:28: expected a list of services such as [ntp, dns], found \"ntp\"");
        let error = parse(&node("services: [nts]")).expect_err("it is no service").to_string();
        assert!(error.contains("3:29: expected ntp or dns, found \"nts\"; did you mean ntp?"), "{error}");
        refused(
            &node("kernel: k, deterministic: true, services: [ntp]").replace("image: /i, ", ""),
            "3:39: `a` is deterministic and cannot have services: what comes from outside comes when it likes; remove them",
        );
        refused(
            &node("kernel: k, deterministic: true, clock: real").replace("image: /i, ", ""),
            "3:46: `a` is deterministic and cannot have the real time: its clock counts instructions; write `clock: virtual`",
        );
    }
}
