//! What people call places.

use std::{fmt, path::PathBuf, str::FromStr};

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

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let forms = "write s3://BUCKET/PREFIX, ssh://HOST/DIRECTORY or the absolute path of a directory";
        match text.split_once("://") {
            Some(("s3", rest)) => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let address = Self::S3 { bucket: bucket.to_owned(), prefix: prefix.trim_matches('/').to_owned() };
                if bucket.is_empty() { Err(format!("\"{text}\" names no bucket; {forms}")) } else { Ok(address) }
            }
            Some(("ssh", rest)) => ssh(rest).map_err(|why| format!("\"{text}\" {why}; {forms}")),
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
            "https://host/a",
            "ftp://host/a",
            "file://a",
        ] {
            let refused = text.parse::<Address>().expect_err(text);
            assert!(refused.contains("s3://BUCKET/PREFIX"), "{refused}");
        }
    }
}
