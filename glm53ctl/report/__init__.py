"""The bundle of `glm53ctl report`: what is in it is listed here, field by field; nothing else gets in."""
