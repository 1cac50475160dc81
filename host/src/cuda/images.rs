//! The compiled kernels that are part of this program.

/// The kernels of `gpu` compiled for one architecture.
#[derive(Clone, Copy, Debug)]
pub struct KernelImage {
    /// `80` for sm_80, `90` for sm_90 and sm_90a.
    pub arch: u32,
    /// Whether it uses what only GPUs of exactly that capability have, as sm_90a does; else newer ones run it too.
    pub exact: bool,
    /// PTX text, which the driver compiles for the GPUs that run it.
    pub ptx: &'static str,
    /// Machine code, when `ptxas` was there at build time; runs on GPUs of the same major capability only.
    pub cubin: Option<&'static [u8]>,
}

impl KernelImage {
    /// From its target's name, as `sm_90a`.
    pub fn new(target: &str, ptx: &'static str, cubin: Option<&'static [u8]>) -> KernelImage {
        let number = target.trim_start_matches("sm_");
        let digits = number.trim_end_matches('a');
        // A target that is not understood fits no GPU.
        KernelImage { arch: digits.parse().unwrap_or(u32::MAX), exact: digits != number, ptx, cubin }
    }

    /// Its target, as `sm_90a`.
    pub fn target(&self) -> String {
        format!("sm_{}{}", self.arch, if self.exact { "a" } else { "" })
    }

    /// Whether a GPU of that capability runs it, its PTX at least.
    fn runs_on(&self, (major, minor): (u32, u32)) -> bool {
        let capability = 10 * major + minor;
        if self.exact { self.arch == capability } else { self.arch <= capability }
    }

    /// The machine code, if there is any and a GPU of that capability runs it.
    pub fn cubin_for(&self, (major, minor): (u32, u32)) -> Option<&'static [u8]> {
        let fits = self.runs_on((major, minor)) && self.arch / 10 == major;
        self.cubin.filter(|_| fits)
    }
}

/// All images of this program, or why there are none.
#[derive(Clone, Copy, Debug)]
pub struct KernelImages {
    /// Images by ascending architecture.
    pub images: &'static [KernelImage],
    /// The compiler they were made with; why there are none where `images` is empty.
    pub note: &'static str,
}

impl KernelImages {
    /// The newest image that a GPU of that capability runs, of two one that is for exactly this GPU; the reason when there is
    /// none.
    pub fn choose(&self, (major, minor): (u32, u32)) -> Result<&'static KernelImage, String> {
        let capability = 10 * major + minor;
        let fitting = self
            .images
            .iter()
            .filter(|image| image.runs_on((major, minor)))
            .max_by_key(|image| (image.arch, image.exact));
        fitting.ok_or_else(|| match self.images {
            [] => self.note.to_owned(),
            images => {
                let have: Vec<String> = images.iter().map(KernelImage::target).collect();
                format!("it has kernels for {}, the GPU is sm_{capability}", have.join(", "))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static IMAGES: [KernelImage; 3] = [
        KernelImage { arch: 80, exact: false, ptx: "", cubin: Some(b"80") },
        KernelImage { arch: 90, exact: false, ptx: "", cubin: None },
        KernelImage { arch: 90, exact: true, ptx: "", cubin: Some(b"90a") },
    ];
    const ALL: KernelImages = KernelImages { images: &IMAGES, note: "rustc" };

    #[test]
    fn the_newest_image_the_gpu_runs_is_chosen() {
        let target = |capability| ALL.choose(capability).unwrap().target();
        assert_eq!([(8, 0), (8, 9), (9, 0), (12, 0)].map(target), ["sm_80", "sm_80", "sm_90a", "sm_90"]);
        let missing = "it has kernels for sm_80, sm_90, sm_90a, the GPU is sm_75";
        assert_eq!(ALL.choose((7, 5)).unwrap_err(), missing);
        let none = KernelImages { images: &[], note: "no compiler" };
        assert_eq!(none.choose((9, 0)).unwrap_err(), "no compiler");
    }

    #[test]
    fn machine_code_is_for_one_major_capability() {
        let image = &IMAGES[0];
        assert!(image.cubin_for((8, 6)).is_some());
        assert!(image.cubin_for((9, 0)).is_none());
        assert!(IMAGES[1].cubin_for((9, 0)).is_none());
        assert!(IMAGES[2].cubin_for((9, 0)).is_some() && IMAGES[2].cubin_for((9, 1)).is_none());
    }

    #[test]
    fn a_target_names_its_image() {
        for (target, arch, exact) in [("sm_80", 80, false), ("sm_90a", 90, true), ("sm_120", 120, false)] {
            let image = KernelImage::new(target, "", None);
            assert_eq!((image.arch, image.exact, image.target()), (arch, exact, target.to_owned()));
        }
    }
}
