"""glm53ctl: the control plane. It probes, plans, launches and supervises; it never imports torch."""

__version__ = "0.1.0"
