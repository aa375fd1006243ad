/** In place of linkify-it, which markdown-it makes but never asks: addresses in a text do not become links here. */

export class LinkifyIt {}
