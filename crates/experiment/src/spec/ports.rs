//! Ports of a machine that are forwarded from this host.

use super::{
    error::{Fault, FaultKind, Faults, Span},
    raw::{Name, Spanned},
    units::{ParseUnitError, shorten},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{borrow::Cow, collections::BTreeMap, fmt, num::NonZeroU16, str::FromStr};

/// Forwarded ports of one machine.
pub(super) const PORTS_MAX: usize = 64;
const DIGITS_MAX: usize = 5;

/// A TCP port of a machine, and the port of this host's own address, 127.0.0.1, that leads to it. As text: `8080:80`, or `22` for any free one of the
/// host. As JSON: that text, or the guest's port as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Of the guest.
    pub guest: NonZeroU16,
    /// Of the host; none: any that is free.
    pub host: Option<NonZeroU16>,
}

impl Port {
    pub(super) const EXPECTED: &'static str = "a port from 1 to 65535, such as 22, or two as \"8080:80\", the host's before the guest's";
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Some(host) => write!(f, "{host}:{}", self.guest),
            None => write!(f, "{}", self.guest),
        }
    }
}

impl FromStr for Port {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let wrong = || ParseUnitError::new(Self::EXPECTED, text);
        // Without this, a sign would do too, and any number of zeros.
        let number = |digits: &str| {
            let all = digits.len() <= DIGITS_MAX && digits.bytes().all(|byte| byte.is_ascii_digit());
            all.then(|| digits.parse::<NonZeroU16>().ok()).flatten().ok_or_else(wrong)
        };
        match text.split_once(':') {
            Some((host, guest)) => Ok(Self { guest: number(guest)?, host: Some(number(host)?) }),
            None => Ok(Self { guest: number(text)?, host: None }),
        }
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.host {
            Some(_) => serializer.collect_str(self),
            None => serializer.serialize_u16(self.guest.get()),
        }
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Guest(NonZeroU16),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Guest(guest) => Ok(Self { guest, host: None }),
            Written::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

impl JsonSchema for Port {
    fn schema_name() -> Cow<'static, str> {
        "Port".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A TCP port of the machine, reached by any free port of 127.0.0.1; or such a port before it.",
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 65535},
                {"type": "string", "pattern": "^([0-9]{1,5}:)?[0-9]{1,5}$"},
            ],
            "examples": [22, "8080:80"],
        })
    }
}

/// Finds ports of the host that more than one machine is to have: each port that was seen so far, with its machine and place.
#[derive(Default)]
pub(super) struct Taken(BTreeMap<NonZeroU16, (String, Span)>);

impl Taken {
    /// The ports of one more machine.
    pub fn add(&mut self, machine: &Spanned<Name>, ports: &[Spanned<Port>], faults: &mut Faults) {
        let machine = &machine.value.0;
        for Spanned { value, span } in ports {
            let Some(host) = value.host else { continue };
            let Some((first, place)) = self.0.get(&host) else {
                self.0.insert(host, (machine.clone(), span.clone()));
                continue;
            };
            let (first, machine) = (shorten(first), shorten(machine));
            let message = format!(
                "port {host} of this host would lead to `{first}` and to `{machine}`; give one of them another, or only the guest's: {}",
                value.guest
            );
            faults.push(Fault::new(FaultKind::Invalid, span.clone(), "again here", message).also(place.clone(), "first here"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{means, parse, refused};
    use serde_json::json;

    #[test]
    fn ports_as_people_write_them() {
        let yaml = "name: x\ndefaults: {image: /i, ports: [22]}\nnodes:\n  a: {ports: [22, 8080:80, \"443\"]}\n  b:\n  c: {ports: []}\n";
        let node = |ports: serde_json::Value| {
            let mut node = json!({"image": "/i", "memory": 1 << 30, "cpus": 1, "accel": "auto", "deterministic": false});
            if ports != json!([]) {
                node["ports"] = ports;
            }
            node
        };
        means(yaml, json!({"name": "x", "nodes": {"a": node(json!([22, "8080:80", 443])), "b": node(json!([22])), "c": node(json!([]))}}));
    }

    #[test]
    fn ports_that_cannot_be() {
        let node = |keys: &str| format!("name: x\nnodes:\n  a: {{image: /i, {keys}}}\n");
        refused(&node("ports: 22"), "3:25: expected a list of ports such as [22, \"8080:80\"], found the number 22");
        for port in
            ["0", "65536", "-1", "+1", "1.5", "ssh", "\"80:\"", "\"80:0\"", "\"1:2:3\"", "\"127.0.0.1:80:80\"", "\"000022\"", "[22]"]
        {
            let error = parse(&node(&format!("ports: [{port}]"))).expect_err(port).to_string();
            assert!(error.contains("3:26: expected a port from 1 to 65535"), "{error}");
        }
        let many: Vec<_> = (1..=65).map(|port| port.to_string()).collect();
        refused(&node(&format!("ports: [{}]", many.join(", "))), "3:18: `ports`: at most 64 of a machine, found 65; remove some");
        refused(
            &node("kernel: k, deterministic: true, ports: [22]").replace("image: /i, ", ""),
            "3:39: `a` is deterministic and cannot have ports: what comes from outside comes when it likes; remove them",
        );
    }

    #[test]
    fn one_port_of_the_host_leads_to_one_machine() {
        refused(
            "name: x\ndefaults: {image: /i}\nnodes:\n  a: {ports: [\"80:80\"]}\n  b: {ports: [80, \"80:8080\"]}\n",
            "5:19: port 80 of this host would lead to `a` and to `b`; give one of them another, or only the guest's: 8080",
        );
        refused(
            "name: x\ndefaults: {image: /i, ports: [\"80:80\"]}\nnodes: {a: , b: }\n",
            "2:31: port 80 of this host would lead to `a` and to `b`; give one of them another, or only the guest's: 80",
        );
    }
}
