//! Matrix products by cuBLASLt, loaded at run time.
//!
//! Every product has a plan that is made once: descriptors, and an algorithm chosen by measurement, taken from a
//! cache, or pinned. The heuristic's first choice can be 30% slower than the best of its candidates.

pub mod cache;
pub mod ffi;
pub mod key;
pub mod library;
mod measure;
pub mod plan;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::rc::Rc;

use cust::sys::CUstream;

use self::cache::{Identity, PlanCache, PlanEntry, PlanTable};
use self::key::PlanKey;
use self::library::{CublasLtLibrary, Handle};
use self::plan::{Addresses, Candidate, Descriptors};
use crate::cuda::device::Gpu;
use crate::error::{CublasLtError, ExecError};
use crate::exec::Product;

/// How algorithms are chosen.
#[derive(Clone, Debug, Default)]
pub enum Choice {
    /// By time, of up to 16 candidates; kept in a cache file where a path is given.
    #[default]
    Measure,
    /// The heuristic's first candidate: the same on every run with the same library, GPU and driver.
    First,
    /// From a table, for example a checkpoint's; a product that is not in it is an error.
    Pinned(PlanTable),
}

struct Plan {
    descriptors: Descriptors,
    candidate: Candidate,
}

/// cuBLASLt on one GPU: handle and plans.
pub struct CublasLt {
    gpu: Rc<Gpu>,
    handle: Handle,
    identity: Identity,
    choice: Choice,
    cache: Option<PlanCache>,
    /// Algorithms that the cache file holds.
    cached: BTreeMap<String, PlanEntry>,
    plans: HashMap<PlanKey, Plan>,
    chosen: BTreeMap<String, PlanEntry>,
}

impl CublasLt {
    /// Makes a handle on the GPU. A pinned table of another GPU, driver or library is refused.
    pub fn new(
        gpu: &Rc<Gpu>,
        library: CublasLtLibrary,
        choice: Choice,
        cache: Option<PathBuf>,
    ) -> Result<Self, ExecError> {
        let identity = Identity {
            gpu: gpu.properties().name.clone(),
            driver: gpu.driver().to_string(),
            cublaslt: library.version(),
        };
        if let Choice::Pinned(table) = &choice
            && table.identity != identity
        {
            return Err(ExecError::PinnedElsewhere {
                pinned: table.identity.to_string(),
                here: identity.to_string(),
            });
        }
        let cache = match choice {
            Choice::Measure => cache.map(|path| PlanCache::new(path, identity.clone())),
            Choice::First | Choice::Pinned(_) => None,
        };
        let handle = Handle::new(Rc::new(library), || identity.to_string())?;
        Ok(Self {
            gpu: gpu.clone(),
            handle,
            identity,
            choice,
            cached: cache.as_ref().map(PlanCache::load).unwrap_or_default(),
            cache,
            plans: HashMap::new(),
            chosen: BTreeMap::new(),
        })
    }

    /// The library in use.
    pub fn library(&self) -> &CublasLtLibrary {
        self.handle.library()
    }

    /// Whether the product has its plan.
    pub fn is_planned(&self, product: &Product, bias: bool) -> bool {
        self.plans.contains_key(&PlanKey::new(product, bias))
    }

    /// Makes the product's plan if there is none. Measuring allocates scratch memory and waits for the device.
    pub fn plan(&mut self, product: &Product, bias: bool) -> Result<(), ExecError> {
        let key = PlanKey::new(product, bias);
        if self.plans.contains_key(&key) {
            return Ok(());
        }
        let descriptors = Descriptors::new(&self.handle, &key)?;
        let (candidate, entry) = match &self.choice {
            Choice::Pinned(table) => {
                let entry = table.plans.get(&key.to_string()).ok_or_else(|| ExecError::NotPinned {
                    product: product.to_string(),
                    key: key.to_string(),
                })?;
                let candidate =
                    self.stored(&descriptors, &key, entry).ok_or_else(|| ExecError::NotPinned {
                        product: product.to_string(),
                        key: format!("{key}, whose stored algorithm cuBLASLt refuses"),
                    })?;
                (candidate, entry.clone())
            }
            Choice::First => {
                let candidates = descriptors.candidates(&self.handle, &key)?;
                (candidates[0], entry(&candidates[0], None, candidates.len()))
            }
            Choice::Measure => self.cached_or_measured(&descriptors, &key)?,
        };
        self.chosen.insert(key.to_string(), entry);
        self.plans.insert(key, Plan { descriptors, candidate });
        Ok(())
    }

    /// A stored algorithm, if this library would run it.
    fn stored(&self, descriptors: &Descriptors, key: &PlanKey, entry: &PlanEntry) -> Option<Candidate> {
        descriptors.verify(&self.handle, &cache::from_hex(&entry.algorithm)?, key)
    }

    fn cached_or_measured(
        &self,
        descriptors: &Descriptors,
        key: &PlanKey,
    ) -> Result<(Candidate, PlanEntry), ExecError> {
        if let Some(entry) = self.cached.get(&key.to_string()) {
            match self.stored(descriptors, key, entry) {
                Some(candidate) => return Ok((candidate, entry.clone())),
                None => tracing::warn!(
                    "plan cache: cuBLASLt refuses the stored algorithm of {key}; measuring again"
                ),
            }
        }
        let candidates = descriptors.candidates(&self.handle, key)?;
        let (candidate, microseconds) =
            measure::choose(&self.gpu, &self.handle, descriptors, key, &candidates)?;
        tracing::debug!("{key}: {microseconds:.2} us, best of {}", candidates.len());
        Ok((candidate, entry(&candidate, Some(microseconds), candidates.len())))
    }

    /// Issues a planned product on a stream.
    ///
    /// # Safety
    /// The product has passed [`Product::check`] and its operands are device memory; `bias` is the address of its
    /// `n` floats (0 for none); `workspace` has [`plan::WORKSPACE_BYTES`] bytes that only `stream` uses.
    pub unsafe fn run(
        &self,
        product: &Product,
        bias: Option<u64>,
        workspace: u64,
        stream: CUstream,
    ) -> Result<(), ExecError> {
        let key = PlanKey::new(product, bias.is_some());
        let Some(plan) = self.plans.get(&key) else {
            return Err(ExecError::NoBackend { label: product.label, what: "a plan" });
        };
        let at = Addresses {
            a: product.a.addr(),
            b: product.b.addr(),
            c: product.c.addr(),
            bias: bias.unwrap_or(0),
        };
        // SAFETY: the key's spans are those `Product::check` has compared with the buffers' lengths; the rest is
        // the caller's promise.
        let run = unsafe { plan.descriptors.run(&self.handle, &key, &plan.candidate, at, workspace, stream) };
        run.map_err(|error| CublasLtError { subject: format!("{product} ({key})"), ..error }.into())
    }

    /// The algorithms in use.
    pub fn table(&self) -> PlanTable {
        PlanTable { identity: self.identity.clone(), plans: self.chosen.clone() }
    }

    /// Writes newly measured algorithms to the cache file. A file that cannot be written costs the next start a
    /// second of measuring and nothing else, so it is reported and not an error.
    pub fn save(&mut self) {
        let fresh = |(key, entry): (&String, &PlanEntry)| {
            (self.cached.get(key) != Some(entry)).then(|| (key.clone(), entry.clone()))
        };
        let mut unsaved: BTreeMap<_, _> = self.chosen.iter().filter_map(fresh).collect();
        if let Some(cache) = &self.cache
            && !unsaved.is_empty()
        {
            match cache.store(&unsaved) {
                Ok(()) => self.cached.append(&mut unsaved),
                Err(error) => tracing::warn!("the chosen algorithms are not kept: {error}"),
            }
        }
    }
}

fn entry(candidate: &Candidate, microseconds: Option<f64>, candidates: usize) -> PlanEntry {
    PlanEntry { algorithm: cache::to_hex(&candidate.algorithm), microseconds, candidates }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.save();
    }
}
