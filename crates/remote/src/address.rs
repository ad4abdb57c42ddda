//! What people call places.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr};

/// A place that checkpoints are copied to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A directory of this host, or of one that it has mounted: `/backup/fermata`, `file:///backup/fermata`.
    Directory(PathBuf),
    /// S3, or what speaks like it: `s3://bucket/prefix`.
    S3 {
        /// The bucket. It has to be there.
        bucket: String,
        /// What the names of all objects begin with; may be empty.
        prefix: String,
    },
    /// A directory of another host, which has Fermata, too: `ssh://user@host:22/backup/fermata`.
    Ssh {
        /// The host.
        host: Host,
        /// The directory there.
        directory: PathBuf,
    },
    /// A directory for which a Fermata listens: `https://host/path`; `http://` on this host alone, since a secret travels.
    Http(String),
}

/// A host, as `ssh` is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name or address, or what the user's configuration calls it, and who the user is there: `user@host`.
    pub name: String,
    /// Where its server of SSH listens, if not where it usually does.
    pub port: Option<u16>,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// The words between `ssh://` and the end.
fn ssh(rest: &str) -> Result<Address, &'static str> {
    let (host, directory) = rest.split_once('/').ok_or("names no directory")?;
    // An address of IPv6 has colons of its own, and brackets around them.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port.parse().map_err(|_| "has a port that is no number")?)),
        _ => (host, None),
    };
    let name = name.replace(['[', ']'], "");
    // It would be taken for an option.
    if name.is_empty() || name.starts_with('-') || directory.is_empty() {
        return Err("names no host or no directory");
    }
    Ok(Address::Ssh { host: Host { name, port }, directory: PathBuf::from("/").join(directory) })
}

/// A URL, whole.
fn http(url: &str) -> Result<Address, &'static str> {
    let parsed = reqwest::Url::parse(url).map_err(|_| "is no URL")?;
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("has a name or a password, which many could read; what is secret is in FERMATA_PEER_TOKEN");
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err("has more behind its path than can be asked for");
    }
    let host = parsed.host_str().unwrap_or_default();
    let here = host.trim_matches(['[', ']']).parse::<IpAddr>().map_or(host == "localhost", |ip| ip.is_loopback());
    if parsed.scheme() == "http" && !here {
        return Err("would send a secret in the open; https:// hides it");
    }
    Ok(Address::Http(url.to_owned()))
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let forms = "write s3://BUCKET/PREFIX, ssh://HOST/DIRECTORY, https://HOST/PATH or the absolute path of a directory";
        match text.split_once("://") {
            Some(("s3", rest)) => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let address = Self::S3 { bucket: bucket.to_owned(), prefix: prefix.trim_matches('/').to_owned() };
                if bucket.is_empty() { Err(format!("\"{text}\" names no bucket; {forms}")) } else { Ok(address) }
            }
            Some(("ssh", rest)) => ssh(rest).map_err(|why| format!("\"{text}\" {why}; {forms}")),
            Some(("http" | "https", _)) => http(text).map_err(|why| format!("\"{text}\" {why}; {forms}")),
            Some(("file", rest)) if rest.starts_with('/') => Ok(Self::Directory(rest.into())),
            None if text.starts_with('/') => Ok(Self::Directory(text.into())),
            _ => Err(format!("\"{text}\" is no place that checkpoints can be copied to; {forms}")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Self::Http(url) => f.write_str(url),
            Self::Ssh { host, directory } => write!(f, "ssh://{host}{}", directory.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_meant() {
        for (text, told) in [
            ("/backup/fermata", "/backup/fermata"),
            ("file:///backup", "/backup"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/a/b/", "s3://bucket/a/b"),
            ("ssh://host/backup", "ssh://host/backup"),
            ("ssh://me@host:2222/backup/b", "ssh://me@host:2222/backup/b"),
            ("https://host.example:8443/a", "https://host.example:8443/a"),
            ("http://127.0.0.1:8391", "http://127.0.0.1:8391"),
            ("http://[::1]:8391/", "http://[::1]:8391/"),
            ("http://localhost/a", "http://localhost/a"),
        ] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(told.to_owned()), "{text}");
        }
        for text in [
            "",
            "backup",
            "s3://",
            "s3:///a",
            "ssh://host",
            "ssh://host/",
            "ssh:///a",
            "ssh://-oProxyCommand=x/a",
            "ssh://host:ssh/a",
            "http://host.example/a",
            "http://127.0.0.1.example/a",
            "https://me:secret@host/a",
            "https://host/a?b",
            "https://",
            "ftp://host/a",
            "file://a",
        ] {
            let refused = text.parse::<Address>().expect_err(text);
            assert!(refused.contains("s3://BUCKET/PREFIX"), "{refused}");
        }
    }
}
